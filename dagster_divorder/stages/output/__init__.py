"""Stages that write files for people and trainers."""
