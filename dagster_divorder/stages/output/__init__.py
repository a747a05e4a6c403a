"""Stages that write what people and trainers read."""
