"""The store in PostgreSQL with pgvector, which any number of processes share."""
