"""Fine-tuning data: the forms of its records, their documents in the store, and their chat templates."""
