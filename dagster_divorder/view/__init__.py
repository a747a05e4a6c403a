"""Pictures: numbers in, a figure out. Modules here read no corpus and decide nothing."""
