"""Stages from traits to the order of documents, sequences and batches."""
