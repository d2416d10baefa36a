"""Vector search in this process, without locks for readers. Start reading at index.py."""
