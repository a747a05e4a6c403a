"""Stages from vectors to clusters, their names and their map."""
