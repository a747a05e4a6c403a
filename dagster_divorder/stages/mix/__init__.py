"""Stages that choose what is trained on and how often."""
