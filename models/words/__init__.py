"""Sentences for people: refusals, and the name that was probably meant."""
