"""The store in SQLite, inside the data directory. Start reading at store.py."""
