"""The page: one HTML file. No module here reads a corpus."""
