"""Retraining that is left alone: what it reads, what it keeps back to judge with, when it runs."""
