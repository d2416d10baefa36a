"""Opens a folder with torch, and publishes it as a version. Start at export.py.

    folder ─▶ backbone ─▶ pooling ─▶ layers: Forward (export.py)
                          │ in eval mode, single texts: the reference of the proof
                          ▼
    families with a graph by Simile: from the weights ─▶ ONNX ─▶ proof ─▶ Store      (export.py)
    others: torch.onnx.export of the backbone, then graph/head.py

Only this package of `models` imports torch and transformers. It never opens pickles or runs code of a folder.
"""
