"""Slow, obvious twins of the fast code, which tests compare with it. The package imports none of them."""
