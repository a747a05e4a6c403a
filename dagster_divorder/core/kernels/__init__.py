"""Hot loops, compiled by numba; the only modules that import it when they are loaded. Slow twins: tests/twins."""

from numba.core import entrypoints

# Before the first kernel runs numba would load the extensions of all installed packages, such as awkward, which comes
# with gigatoken: a quarter of the time until then. No kernel has to do with their types.
entrypoints._already_initialized = True
