"""Modules for the commands of `python -m service`."""
