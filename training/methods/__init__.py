"""Recipes and their building blocks: sources, views, heads, objectives."""
