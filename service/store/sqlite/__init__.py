"""The store in SQLite, inside the data directory; store.py has its methods."""
