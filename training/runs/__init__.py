"""Training runs: set up, stepped, watched, stopped, resumed and exported."""
