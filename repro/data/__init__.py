"""Corpora, vocabulary, encoded sides and batches."""
