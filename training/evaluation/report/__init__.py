"""Scores as tables, Markdown and pictures."""
