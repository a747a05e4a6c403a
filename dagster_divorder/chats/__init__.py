"""Fine-tuning data: the forms of its records, the documents that the store keeps of them, and their chat templates."""
