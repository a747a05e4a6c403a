"""NumPy's BLAS on one thread: the last bits of a product depend on their number, and small ones are done sooner."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import numpy  # noqa: F401 - loads its BLAS

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager[object]:
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Looking for it takes longer than the work on a small fragment."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
