"""A check that a published folder opens in other people's tools, and gives the same vectors there.

    version ─▶ Simile's own vectors ──────────────────────────────┐
       └─▶ copy ─▶ probe.py in the tool's own environment ─▶ .npy ┴─▶ cosines ─▶ verdict

`python -m models verify-portability VERSION` (command.py). Nothing of a tool is imported here: each lives in
a virtual environment that is no part of Simile's.
"""
