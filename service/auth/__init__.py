"""API keys, roles, rate limits and the audit log. Start reading at access.py."""
