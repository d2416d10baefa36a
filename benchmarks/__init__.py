"""Benchmarks of the service and of the trainer. Start reading at `__main__.py`, which is `make bench`.

The other benchmarks run with `python -m benchmarks.NAME`; CONTRIBUTING.md lists them. `command.py` has the
options and the report that most commands share.
"""

import os

import models  # noqa: F401  before ONNX Runtime is loaded, because it turns telemetry off

# Set before numpy is imported, so that the benchmark does not take the processors that it measures.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
