"""Stages that measure an order beside shuffles."""
