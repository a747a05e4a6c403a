"""Stages that read the input: records, ids, fields."""
