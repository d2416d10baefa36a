"""Training methods: recipes, and their building blocks, which are sources, views, heads and objectives."""
