"""Tokenizers, checkpoints, forward passes and training of models."""
