"""Handles connections, limits, deadlines, access control and error answers.

Start reading at middleware.py.
"""
