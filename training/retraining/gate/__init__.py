"""The promotion gate, which decides if a candidate may replace the active version."""
