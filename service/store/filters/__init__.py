"""Metadata filters: from JSON to SQL."""
