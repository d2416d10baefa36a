"""Many small requests become few encoder calls."""
