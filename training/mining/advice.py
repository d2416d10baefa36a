"""Warnings about a corpus that may spoil a contrastive training; each sentence says what to do.

Nothing here refuses a corpus: these are reasons to look. Not here: how the figures come about (figures.py).
"""

from __future__ import annotations

from models.tokens.reading import TOKENS_PER_WORD, UNKNOWN
from training.mining.figures import OPENINGS, SHORT_TOKENS, Figures

# Chosen by us where no source is named.
REPEATED = 0.05  # of the lines
NEAR_DUPLICATES = 0.05  # of the texts
MEDIAN_TOKENS = 5
SHORT = 0.1  # of the texts
BATCHES = 10  # of one pass over the corpus
OVER_MAX_LENGTH = 0.5  # of the texts
FOR_SPANS = 0.5  # of the texts
FOREIGN = 0.2  # of the letters are of one script other than Latin
ENTRIES = 1000  # of a vocabulary that knows words of a script, and not its letters alone
# Of the texts, by the ten most frequent pairs of first words. Measured: premises of NLI 0.14, those of SNLI
# alone 0.43; sentences of Wikipedia 0.07, of film reviews 0.08. SimCSE is known to go wrong on NLI premises.
HOMOGENEOUS = 0.12
_TEACH = (
    "choose one whose vocabulary covers this language (--base), or teach it this one's words by "
    "`python -m training train adapt`."
)


def warnings(figures: Figures, batch: int, max_length: int, *, alone: bool) -> list[str]:
    """batch, max_length: of the recipe. alone: it reads single texts, so their mould matters to it."""
    return [sentence for sentence in _all(figures, batch, max_length, alone) if sentence]


def _all(f: Figures, batch: int, max_length: int, alone: bool) -> list[str]:
    lines = f.texts + f.repeated
    near = f.near_duplicates / f.sampled
    batches = f.texts / batch
    opened = sum(f.openings.values())
    return [
        _if(
            f.repeated / lines > REPEATED,
            f"{f.repeated / lines:.1%} of the lines repeat another; training reads each text once, so look "
            "whether the export is what you meant.",
        ),
        _if(
            near > NEAR_DUPLICATES,
            f"{near:.1%} of the texts nearly repeat another and would be pushed apart as negatives in one "
            "batch: run `python -m training mine dedupe` first.",
        ),
        _if(
            f.tokens.median < MEDIAN_TOKENS,
            f"The median text has {f.tokens.median:g} tokens, too few to say what it means: join lines into "
            "whole sentences.",
        ),
        _if(
            f.short > SHORT,
            f"{f.short:.1%} of the texts have fewer than {SHORT_TOKENS} tokens: leave such lines out.",
        ),
        _if(
            batches < BATCHES,
            f"{f.texts:,} texts are {batches:.1f} batches of {batch}, too few to learn from: add text, or "
            "lower --batch.",
        ),
        _if(f.over_max_length > OVER_MAX_LENGTH, _long(f, max_length)),
        _if(
            f.unknown > UNKNOWN,
            f"{f.unknown:.1%} of the tokens are unknown to the base model: {_TEACH}",
        ),
        _if(
            f.tokens_per_word > TOKENS_PER_WORD,
            f"A word takes {f.tokens_per_word:.1f} tokens, so the base model spells it rather than reads it: "
            + _TEACH,
        ),
        *(
            f"{share:.1%} of the letters are {script}, and {f.vocabulary[script]:,} entries of the base "
            "model's vocabulary are: choose a base for this language, or a multilingual one (--base)."
            for script, share in f.scripts.items()
            if script != "Latin" and share > FOREIGN and f.vocabulary[script] < ENTRIES
        ),
        _if(
            alone and opened > HOMOGENEOUS,
            f"{opened:.1%} of the texts begin with one of {OPENINGS} pairs of words: text of one mould makes "
            "unsupervised SimCSE worse, so mix in other text or train on pairs.",
        ),
    ]


def _long(f: Figures, max_length: int) -> str:
    cut = f"{f.over_max_length:.1%} of the texts are longer than {max_length} tokens and would be cut: "
    if f.for_spans > FOR_SPANS:
        return cut + "they are long enough for spans (DeCLUTR), which reads all of them."
    return cut + "split them into sentences, or raise max_length in the recipe."


def _if(true: bool, sentence: str) -> str:
    return sentence if true else ""
