"""Dagster assets, one file each. With `dagster_divorder.definitions` the only code that imports dagster.

An asset body is three moves: run the stage, which loads and computes, then report what it made.
"""
