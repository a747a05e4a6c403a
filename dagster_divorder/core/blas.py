"""NumPy's BLAS, or faiss, on one thread. The last bits of a product depend on the number of threads, and small products
are faster on one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import numpy  # noqa: F401 - loads its BLAS

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@functools.cache
def _loaded(owners: frozenset[str]) -> ThreadpoolController:
    """The BLAS libraries of this process once these packages, which bring one each, are imported. Looking for them
    takes several milliseconds, as long as small products."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[object]:
    owners = frozenset({"faiss", "scipy.linalg"} & sys.modules.keys())
    return _loaded(owners).limit(limits=1, user_api="blas")


@contextmanager
def one_faiss_thread() -> Iterator[None]:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
