"""Stores and searches documents, by means of the store, the index and the encoder. Start at corpus.py."""
