"""Write evaluation scores as tables, Markdown reports and pictures."""
