"""Pictures: numbers in, a figure out. Nothing here reads a corpus or decides anything."""
