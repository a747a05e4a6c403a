"""The input: files are found, read, parsed and stored as records and documents."""
