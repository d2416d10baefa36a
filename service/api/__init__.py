"""Routes, one file per family, together with their schemas."""
