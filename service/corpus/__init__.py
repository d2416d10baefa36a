"""Stores and searches documents with the store, the index and the encoder. Start reading at corpus.py."""
