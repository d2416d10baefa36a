"""Connections, limits, deadlines, access and error answers around each request. Start at middleware.py."""
