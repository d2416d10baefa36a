"""Quality of an encoder: agreement with human judgments, search, transfer and geometry. Imports no torch."""
