"""The mechanics over any stage: what a stage is, how stages run, plan, are merged, pruned, repaired and checked.

`run_stage(name, settings)` runs one, `run_all(settings)` all that an output needs. Dagster's assets, the command line
and Python code all go through these two.
"""

from dagster_divorder.pipeline.run import Run, last_run, run_all, run_stage

__all__ = ["Run", "last_run", "run_all", "run_stage"]
