"""What the report shows of a run: from its stored results to the sections of `view.report`."""
