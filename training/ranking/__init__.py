"""Learn the ranking of a collection from judged queries. Start at fitting.py."""
