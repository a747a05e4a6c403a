"""The input: finds, reads, parses and stores files as records and documents."""
