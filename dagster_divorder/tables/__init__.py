"""Orders of tables in memory: one call; no settings, store or model."""
