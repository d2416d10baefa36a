"""Evaluate an encoder: sentence similarity, search, transfer and geometry of vectors. Imports no torch."""
