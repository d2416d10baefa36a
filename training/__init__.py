"""Offline: recipes, trainer, evaluation, retraining. Imports no service."""
