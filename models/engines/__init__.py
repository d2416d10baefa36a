"""The runtimes that compute a version's graph. engine.py is their interface; opening.py opens them."""
