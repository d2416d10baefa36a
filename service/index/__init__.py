"""Searches vectors in memory, without locks for readers. Start reading at index.py."""
