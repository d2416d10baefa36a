"""How good an encoder is: against people's judgement, and by its geometry. Imports no torch."""
