"""The online service: embeddings, documents and search over HTTP.

It never imports torch or the package training.
"""

import models  # noqa: F401  first, because it turns off ONNX Runtime's telemetry
