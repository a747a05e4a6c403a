"""Dagster definitions: assets made from the stages by one factory, checks, jobs and automation. Only this folder and
`dagster_divorder.definitions` import dagster."""

HOME = "DAGSTER_HOME"
"""Environment variable with the folder of Dagster's instance."""
