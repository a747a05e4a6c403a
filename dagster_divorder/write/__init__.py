"""Writes results: the permutation of stored rows, the curated output, and exports."""
