"""Hot loops, compiled by numba; the only modules that import it when they are loaded. Slow twins: tests/twins."""
