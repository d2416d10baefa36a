"""Folders and hub ids that a version is published from."""
