"""The online service: embeddings, documents and search over HTTP. Never imports torch or training."""

import models  # noqa: F401  first, because it turns off ONNX Runtime's telemetry
