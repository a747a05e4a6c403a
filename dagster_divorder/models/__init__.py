"""Tokenizers, checkpoints, forward passes and training: everything that knows about models."""
