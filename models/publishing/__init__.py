"""Turns a source folder into a verified, sealed version. Start at publish.py."""
