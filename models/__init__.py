"""Code for published models, which the service and the training share. Start at store.py and encoder.py.

Importing this package disables the telemetry of ONNX Runtime and OpenVINO, before either is imported.
"""

import os
import sys
from typing import Any, cast

# Since 1.29, ONNX Runtime stores an identifier of the machine and a database of events in the user's cache.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# OpenVINO has no such setting, but does nothing if it cannot import this package.
sys.modules.setdefault("openvino_telemetry", cast("Any", None))
