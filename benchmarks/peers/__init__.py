"""Other people's engines and servers, each in an environment of its own; `make bench-peers` makes them.

The scripts here run with a peer's Python and import nothing of this project; NAME.txt are a peer's pins.
"""
