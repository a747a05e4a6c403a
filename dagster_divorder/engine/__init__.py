"""Runs one function over many items, and reports progress."""
