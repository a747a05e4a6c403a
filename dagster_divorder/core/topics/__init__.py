"""Clusters of vectors: fitted, counted, compared, named and drawn."""
