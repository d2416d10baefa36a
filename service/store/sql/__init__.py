"""SQL that both stores share: SQLite and PostgreSQL know all of it."""
