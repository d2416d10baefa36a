"""Registers the blocks of the papers. `load_recipe` imports this module when a recipe names one of them."""

from training.methods.catalogue import register
from training.papers.crops import Cloze, Crops, OrderedSentences
from training.papers.fit import check_fit
from training.papers.flow import Flow
from training.papers.guided_objectives import Anchor, Neighbours, SelfGuided
from training.papers.postprocess import DropPcs, Sif, Usif, Whiten
from training.papers.spans import DocumentSpans
from training.papers.word_objectives import MiJsd, WordCe

register(
    check_fit,
    source=(OrderedSentences, DocumentSpans, Crops, Cloze),
    objectives=(SelfGuided, Neighbours, Anchor, WordCe, MiJsd),
    post=(Whiten, DropPcs, Flow, Sif, Usif),
)
