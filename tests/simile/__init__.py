"""Tests of the command line `simile`."""
