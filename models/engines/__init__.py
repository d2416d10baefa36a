"""How a version's graph is computed: one file per runtime, behind one protocol (engine.py)."""
