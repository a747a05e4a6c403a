"""Stages that read texts: the base model, token counts."""
