"""Runs one function over many fragments, and reports progress."""
