"""Publishes a source folder as a verified version. Start at publish.py."""
