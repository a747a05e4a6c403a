"""Sends interrupts again that Python swallows.

Python raises a signal's exception in the code that runs at that moment. In a callback of the garbage collector (of a
weak reference, or a `__del__`), Python prints the exception and continues: a cancelled run would run to its end.
"""

import functools
import os
import signal
import sys
import threading

DELAY_SECONDS = 0.1
"""Seconds until the hook has returned: an exception inside the hook is swallowed too."""


@functools.cache
def resend_interrupts() -> None:
    """From now on, sends a swallowed interrupt to this process again instead of printing it."""
    before = sys.unraisablehook

    def hook(swallowed: "sys.UnraisableHookArgs") -> None:
        # KeyboardInterrupt or a program's replacement: Dagster's is not an `Exception` either.
        if issubclass(swallowed.exc_type, Exception | SystemExit | GeneratorExit):
            return before(swallowed)
        again = threading.Timer(DELAY_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        return again.start()

    sys.unraisablehook = hook
