"""The mechanics of all stages: what a stage is, and how stages are run, planned, pruned and checked.

Functions take the stages as a graph. `dagster_divorder.stages` has the graph of this package and runs it.
"""
