"""The mechanics over any stage: what a stage is, how stages run, plan, are merged, pruned, repaired and checked.

Functions get the stages as a graph; `dagster_divorder.stages` has the graph of this package, and runs it.
"""
