"""Handles files and folders: writes that survive a power cut, locks, bounded reads, and unsafe links."""
