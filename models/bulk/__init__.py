"""Embeds files of texts without a service. Start at job.py; vector_files.py has the format of results."""
