"""The text to learn from: lines, records, tokens."""
