"""Orders of tables in memory: one call, without settings, store or model."""
