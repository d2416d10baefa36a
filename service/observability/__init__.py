"""Observability of the service: metrics (metrics.py), logs (logs.py) and traces (tracing.py)."""
