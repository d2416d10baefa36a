"""Read the texts to train on, from files or from a service, and tokenize them."""
