"""The stages: what each reads, its key, the core function it calls, what it writes.

`run_stage(name, settings)` runs one, `run_all(settings)` runs every stage in order. Dagster's assets, the command line
and Python code all go through these two.
"""

from dagster_divorder.pipeline.run import Run, run_all, run_stage

__all__ = ["Run", "run_all", "run_stage"]
