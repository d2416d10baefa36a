"""Reads the folders and hub ids that versions are published from. Start at folder.py."""
