"""Stages from traits to the orders of documents and sequences."""
