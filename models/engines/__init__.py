"""The runtimes that compute a version's graph: a file for each, behind one protocol (engine.py)."""
