"""Published models: what service and training share. No torch.

Both runtimes would tell their makers of this machine, ONNX Runtime of each model that is opened, OpenVINO of
each import. That is turned off here, before either is loaded.
"""

import os
import sys
from typing import Any, cast

# Without it ONNX Runtime's builds since 1.29 keep an identifier of the machine and a database of events under
# the user's cache folder. Who sets it is heard.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# There is no such switch, but where this package cannot be imported OpenVINO has a stub that does nothing.
sys.modules.setdefault("openvino_telemetry", cast("Any", None))
