"""What is handed over: the permutation of stored rows, the curated output, exports."""
