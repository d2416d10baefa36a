"""The process: opened, watched and closed."""
