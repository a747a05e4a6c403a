"""A worker process of `engine.local`: reads pickled (function, item), writes pickled (failed, result or error)."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Work until standard input ends, as it does when the process that started this one is gone."""
    # Ctrl-C reaches the whole group; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error, not among the results
    while True:
        try:
            function, item = pickle.load(source)
        except EOFError:
            return
        except Exception as error:
            answer: tuple[bool, Any] = (True, RuntimeError(f"a worker cannot read its task: {error}"))
        else:
            try:
                answer = (False, function(item))
            except Exception as error:
                answer = (True, _portable(error))
        try:
            pickle.dump(answer, sink, protocol=5)
            sink.flush()
        except BrokenPipeError:  # the parent is gone
            os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error with the worker's traceback as a note, or its text where it cannot be pickled."""
    trace = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(trace)
    error.add_note(f"in a worker process:\n{trace}")
    return error


if __name__ == "__main__":
    main()
