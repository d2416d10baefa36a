"""SQL for both stores, in the syntax that SQLite and PostgreSQL share."""
