"""The documents and all that is derived from them, in SQLite. The store is the truth."""
