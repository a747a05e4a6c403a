"""Stages that choose which records are trained on, and how often."""
