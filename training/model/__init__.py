"""The encoder in training, and the models that it starts from."""
