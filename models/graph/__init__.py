"""Builds, imports, quantizes and checks the ONNX graph of a model version."""
