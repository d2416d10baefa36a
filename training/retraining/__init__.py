"""Automatic retraining: read the data of a service, train, evaluate by a gate, publish, and schedule."""
