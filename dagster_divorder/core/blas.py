"""NumPy's BLAS, or faiss, on one thread. The last bits of a product depend on the number of threads, and small products
are faster on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy  # noqa: F401 - loads its BLAS


def one_blas_thread() -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")


@contextmanager
def one_faiss_thread() -> Iterator[None]:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
