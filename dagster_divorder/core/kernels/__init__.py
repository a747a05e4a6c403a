"""Hot loops, compiled by numba. Each states its algebra first and has a slow, obvious twin in `reference_*.py`."""
