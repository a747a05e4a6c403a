"""Vectors of tokens, texts and documents: made, pooled, scaled and projected."""
