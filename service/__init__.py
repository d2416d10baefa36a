"""Online: embedding, documents and search over HTTP. Imports no torch, no transformers, no training."""
