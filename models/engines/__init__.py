"""The runtimes that compute a version's graph. form.py has their interface; opening.py opens them."""
