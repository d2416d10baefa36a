"""What a client sees: one file per family of routes, its schemas beside it."""
