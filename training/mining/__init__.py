"""Prepare training data from texts: mine hard negatives and pairs, remove duplicates, report statistics."""
