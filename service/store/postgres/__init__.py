"""The store in PostgreSQL with pgvector. Any number of processes can share one database."""
