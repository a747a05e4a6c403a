"""Tokenizers, checkpoints and what is trained here: everything that knows about models."""
