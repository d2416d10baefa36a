"""The way of a version to live, and back."""
