"""Pure functions: arrays in, frozen results out. No file is opened; no dagster, ray or torch is imported."""
