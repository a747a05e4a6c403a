"""Dagster definitions: assets by one factory over the stages, checks, jobs, automation. This room and
`dagster_divorder.definitions` are the only code that imports dagster."""
