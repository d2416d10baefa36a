"""The recipes that `benchmarks.methods` compares: what each reads, and what is changed of it."""

from typing import NamedTuple


class Method(NamedTuple):
    recipe: str
    corpus: str  # of CORPORA
    set: tuple[str, ...] = ()  # changes, beside those of every run
    row: int = 1  # texts that a row of its corpus has
    batch: int = 64  # rows


_MEAN = ('pool="mean"',)  # this backbone had no sentence task, so its first token means nothing yet
METHODS = {
    "mean": Method("first-last", "sentences", _MEAN),
    "first-last": Method("first-last", "sentences"),
    "whitening": Method("whitening", "sentences", ("post=[{name='whiten', dimension=128}]",)),
    "all-but-the-top": Method("all-but-the-top", "sentences"),
    "bert-flow": Method("bert-flow", "sentences"),
    "static-average": Method("static-average", "sentences"),
    "static-max": Method("static-max", "sentences"),
    "power-means": Method("power-means", "sentences"),
    "sif": Method("sif", "sentences"),
    "usif": Method("usif", "sentences"),
    "simcse-unsup": Method("simcse-unsup", "sentences", _MEAN),
    "simcse-unsup-mlm": Method("simcse-unsup-mlm", "sentences", _MEAN),
    "gs-infonce": Method("gs-infonce", "sentences", _MEAN),
    "esimcse": Method("esimcse", "sentences", _MEAN),
    "s-simcse": Method("s-simcse", "sentences", _MEAN),
    "diffcse": Method("diffcse", "sentences", _MEAN),
    "diffcse-transfer": Method("diffcse-transfer", "sentences", _MEAN),
    "promptbert": Method("promptbert", "sentences"),
    "consert": Method("consert", "sentences"),
    "ct": Method("ct", "sentences"),
    "ct-in-batch": Method("ct-in-batch", "sentences"),
    "sg-opt": Method("sg-opt", "sentences", _MEAN),
    "is-bert": Method("is-bert", "sentences"),
    "tsdae": Method("tsdae", "sentences", _MEAN),
    "quickthoughts": Method("quickthoughts", "documents"),
    # Of a document two anchors and four positives: some 450 tokens, where a sentence has 26.
    "declutr": Method("declutr", "documents", ("source.longest=128", "max_length=128"), 17, 8),
    "defsent": Method("defsent", "definitions", row=2),  # the word is encoded, too, and only its id is read
    "simcse-sup": Method("simcse-sup", "triples", _MEAN, 3),
    "simcse-sup-mlm": Method("simcse-sup-mlm", "triples", _MEAN, 3),
    "triplet": Method("triplet", "triples", row=3),
    "promptbert-sup": Method("promptbert-sup", "triples", row=3),
    "sbert-nli": Method("sbert-nli", "relations", row=2),
    "pairsupcon": Method("pairsupcon", "relations", row=2),
    "sbert-regression": Method("sbert-regression", "scores", row=2),
    "cosent": Method("cosent", "scores", row=2),
    "augmented-sbert": Method("augmented-sbert", "lists", row=9, batch=8),
}
TRAINED = {method.recipe for method in METHODS.values()} - {
    *("first-last", "whitening", "all-but-the-top", "bert-flow"),
    *("static-average", "static-max", "power-means", "sif", "usif"),
}
