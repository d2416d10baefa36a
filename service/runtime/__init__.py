"""One process: opened, watched and closed."""
