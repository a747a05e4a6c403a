"""An interrupt in a callback of the garbage collector ends the program, as it does anywhere else."""

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time, weakref
from dagster_divorder.engine.interrupts import resend_interrupts

class Interrupted(BaseException):
    "What Dagster raises in place of KeyboardInterrupt."

def handler(*_):
    raise Interrupted

class Held:
    pass

if sys.argv[1] == "its own":
    signal.signal(signal.SIGINT, handler)
resend_interrupts()
resend_interrupts()
held = Held()
reference = weakref.ref(held, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del held
    time.sleep(30)
    print("went on")
except (Interrupted, KeyboardInterrupt) as stop:
    print("stopped by", type(stop).__name__)
"""


@pytest.mark.parametrize(
    ("handler", "error"), [("its own", "Interrupted"), ("python's", "KeyboardInterrupt")]
)
def test_a_swallowed_interrupt_is_sent_again(handler: str, error: str) -> None:
    command = [sys.executable, "-c", PROGRAM, handler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (f"stopped by {error}\n", "")
