"""Measurements of the service; `make bench` runs them."""

import os

import models  # noqa: F401  before ONNX Runtime is loaded: it turns off what that would send

# Before numpy is imported: the bench must not take the processors that it measures.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
