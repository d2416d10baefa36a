"""`python -m service import | export | backup | restore | check --data`: a store, from outside."""
