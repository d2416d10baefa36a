"""Online: embedding, documents and search over HTTP. Imports no torch, no transformers, no training."""

import models  # noqa: F401  before ONNX Runtime is loaded: it turns off what that would send
