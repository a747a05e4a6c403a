"""What Dagster sees: assets by one factory over the stages, checks, jobs, automation. With
`dagster_divorder.definitions` the only code that imports dagster."""
