"""Metrics (metrics.py), logs (logs.py) and traces (tracing.py)."""
