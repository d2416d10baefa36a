"""The torch encoder that training changes, and the base models that a training starts from."""
