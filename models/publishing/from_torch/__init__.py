"""Publishes a folder with torch. Start at export.py.

    reference     folder ─▶ backbone ─▶ pooling ─▶ layers: `Forward`, in eval mode, one text at a time
    ONNX file     of families that Simile can build: from the weights (graph/families.py)
                  of other families: torch.onnx.export of the backbone, and a head by graph/head.py
    check         vectors of the ONNX file against those of the reference (publishing/proof.py) ─▶ ModelStore

Only this package of `models` imports torch and transformers. It never opens pickles, and never runs code from
a model folder.
"""
