"""Measurements of the service; `make bench` runs them."""
