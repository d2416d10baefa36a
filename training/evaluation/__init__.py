"""The quality of an encoder: against people's judgement, and by its geometry. Imports no torch."""
