"""Readers of exports in the order of the plan, for training scripts. Public as `dagster_divorder.torch`."""
