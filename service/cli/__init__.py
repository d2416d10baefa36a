"""Commands that need no running server: `python -m service COMMAND`."""
