"""The ONNX graph of a version: written by hand, adopted, quantised, checked."""
