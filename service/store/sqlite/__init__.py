"""The store in SQLite, in a file of the data directory. Start reading at store.py."""
