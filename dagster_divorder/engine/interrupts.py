"""An interrupt that Python swallows is sent again.

Python raises a signal's exception in whatever code runs at that moment. If this is a callback of the garbage collector
(of a weak reference, or a `__del__`), Python prints the exception and goes on: a cancelled run goes on to its end.
"""

import functools
import os
import signal
import sys
import threading

DELAY_SECONDS = 0.1
"""By then the hook has returned: an exception within it is swallowed as well."""


@functools.cache
def resend_interrupts() -> None:
    """From now on, send a swallowed interrupt to this process again, in place of printing it."""
    before = sys.unraisablehook

    def hook(swallowed: "sys.UnraisableHookArgs") -> None:
        if not _is_interrupt(swallowed.exc_type):
            return before(swallowed)
        again = threading.Timer(DELAY_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        return again.start()

    sys.unraisablehook = hook


def _is_interrupt(kind: type[BaseException]) -> bool:
    """Whether it is KeyboardInterrupt, or what a program raises in its place: Dagster's is no `Exception` either."""
    return not issubclass(kind, Exception | SystemExit | GeneratorExit)
