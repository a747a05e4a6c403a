"""Principal components of a sample, and projection of vectors onto them.

Letters: N vectors, n vectors of the sample, D dims, C components.
Guarantee: `fit` gives the same bytes for the same sample. A projected vector depends only on the vector and the fit,
not on the batch or the number of threads.
Cost: fit O(n D^2 + D^3) on one thread and 8 (n D + D^2) bytes; project O(N D C), half as fast as a matrix product.
Sources: Pearson 1901, Hotelling 1933; scikit-learn's PCA by the eigenvectors of the covariance, signs set so that the
largest entry of each axis is positive. Known weakness: directions of large variance do not always separate clusters.
Measurements: docs/decisions/base-model.md.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.checks import finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Pca:
    """A projection: mean float64 (D,), axes float64 (D, C), orthonormal columns by falling variance."""

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]


def fit(sample: NDArray[np.float32], components: int) -> Pca:
    """Principal components of sample float32 (n, D): `components` of them, at most min(n, D).

    Raises:
        InputError: the sample holds NaN or infinity.
    """
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    finite("the sample", sample)
    # One vector has no variance, and scikit-learn divides by n - 1.
    points = np.repeat(sample, 2, axis=0) if len(sample) == 1 else sample
    # Equal vectors have no variance to explain.
    with threadpool_limits(limits=1), np.errstate(invalid="ignore"):
        fitted = PCA(min(components, *sample.shape), svd_solver="covariance_eigh").fit(
            points.astype(np.float64)
        )
    return Pca(mean=fitted.mean_, axes=np.ascontiguousarray(fitted.components_.T))


def project(vectors: NDArray[np.float32], pca: Pca, *, threads: int = 1) -> NDArray[np.float32]:
    """Vectors float32 (N, D) projected to float32 (N, C), of length 1; a vector at the mean becomes zero.

    NaN and infinity become NaN.
    """
    from dagster_divorder.core.kernels.pool import project_rows

    vectors = np.ascontiguousarray(vectors, np.float32)
    projected = np.empty((len(vectors), pca.axes.shape[1]), np.float32)
    cuts = np.linspace(0, len(vectors), threads + 1).astype(int).tolist()

    def fill(first: int, last: int) -> None:
        project_rows(vectors, first, last, pca.mean, pca.axes, projected)

    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(fill, cuts[:-1], cuts[1:]))
    return projected
