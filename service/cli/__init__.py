"""Commands of `python -m service`."""
