"""Converts text to token ids. Start at tokenizer.py."""
