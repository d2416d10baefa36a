"""SQL that both SQLite and PostgreSQL understand."""
