"""The promotion gate: may a candidate replace the active version?"""
