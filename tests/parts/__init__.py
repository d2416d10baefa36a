"""Helpers that several packages of tests use."""
