"""A source folder becomes a proved, sealed version."""
