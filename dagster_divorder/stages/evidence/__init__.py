"""Stages that show what an order does: they train small models, and compare strategies and curricula."""
