"""The one door to torch: a folder as a torch model, and its way from there to a proved version.

    folder ─▶ backbone ─▶ pooling ─▶ layers: Forward (forward.py)
                          │ in eval mode, each text alone: what the version must compute
                          ▼
    families with a graph of ours: from the weights ─▶ ONNX ─▶ proof ─▶ Store      (export.py)
    others: torch.onnx.export of the backbone, then graph/head.py

Nothing else of `models` imports torch or transformers, and the service imports nothing of this. Only
safetensors are read; code that a folder may bring is never run.
"""
