"""Scripts and pins of other projects' engines, each in an environment of its own (`make bench-peers`).

The scripts run with a peer's Python and import nothing from this project. NAME.txt has the pins of a peer.
"""
