"""Stages that train small models, or compare strategies, to show what an order does."""
