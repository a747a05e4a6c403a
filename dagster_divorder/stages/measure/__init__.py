"""Stages that measure orders and compare them with shuffles."""
