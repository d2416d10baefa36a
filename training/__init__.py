"""Offline: recipes, trainer, evaluation, retraining. Imports no service. Not built yet."""
