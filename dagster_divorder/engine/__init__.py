"""Running one function over many fragments, and telling how far it is."""
