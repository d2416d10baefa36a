"""Batches many small requests into few encoder calls. Start reading at batcher.py."""
