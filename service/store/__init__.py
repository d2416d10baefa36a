"""Stores the documents and all data derived from them, in SQLite or PostgreSQL."""
