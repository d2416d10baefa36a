"""Documents in, hits out: store, index and encoder used together."""
