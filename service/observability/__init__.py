"""Metrics (metrics.py), logs (logs.py, request_log.py) and traces (tracing.py)."""
