"""What a trainer imports: exports, read in the order of the plan. Public as `dagster_divorder.torch`."""
