"""`python -m training report`: a corpus in figures, with warnings, before hours are spent on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.files.fsync import replace_text
from models.progress import to_stderr
from models.sources.folder import read_source
from models.store import models_dir
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.arguments import LOADING, expanded, target
from training.errors import TrainingError
from training.methods.declared import declared
from training.mining.advice import warnings
from training.mining.figures import DECLUTR_TOKENS, SHORT_TOKENS, Figures, Spread, measure
from training.model.base import check_base, open_base
from training.text.corpus import TEXTS, Corpus, from_service, read_corpus
from training.text.service_collections import add_options, chosen

if TYPE_CHECKING:
    from training.methods.recipe import Recipe

_LEAST = 0.001  # of the letters; rarer scripts are in the JSON only
_SHOWN = 3  # openings


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "report",
        help="look at a corpus before training on it",
        description="Figures of a corpus, and what in it is likely to spoil a training.",
    )
    corpus = command.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--corpus", metavar="FILE", help="as for `train`")
    corpus.add_argument("--from-service", metavar="URL", help="the documents of a running service")
    add_options(command)
    command.add_argument("--recipe", default="simcse-unsup", help="a name or a TOML file (%(default)s)")
    command.add_argument(
        "--base", default="default", metavar="MODEL", help="whose tokens are counted (%(default)s)"
    )
    command.add_argument("--json", metavar="FILE", help="write the figures")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    declared(options.recipe)
    check_base(options.base, models_dir(os.environ))
    read = [expanded(options.corpus)] if options.corpus else []
    if read and not read[0].is_file():
        raise TrainingError(f"There is no file {read[0]}.")
    file = target(options.json, *read) if options.json else None
    wanted = chosen(options)
    to_stderr(LOADING)
    from training.methods.catalogue import load_recipe  # noqa: PLC0415  torch

    recipe = load_recipe(options.recipe)
    if recipe.source.kind is not TEXTS:
        raise TrainingError(
            f"A report is on single texts; {recipe.name} reads rows of several. Name another --recipe."
        )
    to_stderr("reading the corpus")
    corpus = read_corpus(read[0]) if read else from_service(options.from_service, wanted=wanted)
    with open_base(options.base, models_dir(os.environ)) as base:
        figures, found, max_length = look_at(corpus, recipe, base.folder)
        name = base.name
    about: dict[str, Any] = {
        "corpus": options.corpus or options.from_service,
        "digest": corpus.digest,
        "base": name,
        "recipe": recipe.name,
        "batch": recipe.optim.batch,
        "max_length": max_length,
    }
    sys.stdout.write(f"{about['corpus']}  (base: {name}; recipe: {recipe.name})\n\n")
    sys.stdout.write(_table(figures, recipe.optim.batch, max_length) + "\n\n")
    sys.stdout.write("".join(f"! {sentence}\n" for sentence in found) or "Nothing to warn of.\n")
    if file:
        content = about | dataclasses.asdict(figures) | {"warnings": found}
        replace_text(file, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return 0


def look_at(corpus: Corpus, recipe: Recipe, base: Path) -> tuple[Figures, list[str], int]:
    """Figures, warnings, and the tokens at which a text is cut; corpus: of single texts, base: its folder."""
    source = read_source(base)
    max_length = min(recipe.max_length, source.max_length)
    figures = measure(corpus, source.backbone / TOKENIZER, max_length)
    alone = recipe.source.kind is TEXTS
    return figures, warnings(figures, recipe.optim.batch, max_length, alone=alone), max_length


def _table(f: Figures, batch: int, max_length: int) -> str:
    scripts = (f"{script} {share:.1%}" for script, share in f.scripts.items() if share >= _LEAST)
    openings = (f"{opening!r} {share:.1%}" for opening, share in list(f.openings.items())[:_SHOWN])
    near = f"{f.near_duplicates:,} ({f.near_duplicates / f.sampled:.1%})"
    rows = [
        ("texts", f"{f.texts:,} distinct; dropped: {f.repeated:,} repeated, {f.blank:,} blank"),
        ("batches", f"{f.texts / batch:,.1f} of {batch} in one pass"),
        ("looked into", f"{f.sampled:,}" + (" drawn at random" if f.sampled < f.texts else "")),
        ("near-duplicates", near + (" of these, so there are more in all" if f.sampled < f.texts else "")),
        ("characters", _spread(f.characters)),
        ("tokens", f"{_spread(f.tokens)}, without special ones"),
        ("", f"{f.short:.1%} have fewer than {SHORT_TOKENS}"),
        ("", f"{f.over_max_length:.1%} exceed the recipe's {max_length}, special ones included"),
        ("", f"{f.for_spans:.1%} reach {DECLUTR_TOKENS}, what DeCLUTR's spans need"),
        ("vocabulary", f"{f.unknown:.2%} of the tokens unknown; {f.tokens_per_word:.2f} tokens for a word"),
        ("scripts", ", ".join(scripts) or "no letters"),
        ("openings", f"{sum(f.openings.values()):.1%} have a frequent one: {', '.join(openings) or 'none'}"),
    ]
    return "\n".join(f"{name:16}{said}" for name, said in rows)


def _spread(s: Spread) -> str:
    middle = f"median {s.median:,.0f}, mean {s.mean:,.1f}, 95 % up to {s.p95:,.0f}"
    return f"{s.least:,.0f} to {s.most:,.0f}; {middle}"
