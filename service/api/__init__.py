"""Routes: one file per family of routes, its schemas beside it."""
