"""Compiles metadata filters from JSON to SQL."""
