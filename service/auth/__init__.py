"""Callers: keys, roles, rate limits and the audit log."""
