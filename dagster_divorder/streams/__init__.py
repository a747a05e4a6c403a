"""Streams that never fit into memory: topics of single examples."""
