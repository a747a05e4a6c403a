"""Dagster definitions: assets made from the stages by one factory, checks, jobs, a sensor and a schedule. Only this
folder and `dagster_divorder.definitions` import dagster."""
