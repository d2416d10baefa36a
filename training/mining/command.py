"""`simile training mine negatives | pairs | lists | silver | dedupe`: create training data from texts."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from models.files.fsync import replaced
from models.messages import amount, positive
from models.progress import step_to_stderr
from training.arguments import expanded, target
from training.errors import NothingToLearn, TrainingError
from training.evaluation.scorable import open_scorable
from training.mining.dedupe import THRESHOLD, near_duplicates
from training.mining.negatives import Mined, Rules, check_min_score, mine_negatives
from training.mining.pairs import (
    MIN_SCORE,
    Labelled,
    Pair,
    folded,
    label_pairs,
    neighbor_pairs,
    read_labelled_pairs,
    title_pairs,
)
from training.mining.queries import Query, build_queries
from training.mining.rerankers import open_reranker
from training.mining.silver import PER_TEXT, Scored, silver_pairs
from training.mining.teacher import Listed, lists, rescore
from training.text.corpus import LISTED, MAX_NEGATIVES, SCORED, TEXTS, read_corpus
from training.text.lines import Record, build_text, layout, read_records, valid
from training.text.service import (
    add_options,
    chosen,
    fetch_collections,
    fetch_documents,
    fetch_feedback,
    find_title,
    get_content,
    qualified,
    shown,
)

_EXAMPLES = 3
_SHOWN = 90  # characters of a text in an example


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    mine = commands.add_parser(
        "mine", help="make better training data: hard negatives, pairs, no near-duplicates"
    )
    of = mine.add_subparsers(required=True, metavar="WHAT")
    negatives = _command(of, "negatives", _negatives, "find hard negatives for known pairs")
    known = negatives.add_mutually_exclusive_group(required=True)
    known.add_argument("--pairs", metavar="FILE", help=".tsv or .jsonl with anchor and positive")
    known.add_argument(
        "--from-service", metavar="URL", help="judged queries and documents of a running service"
    )
    add_options(negatives)
    negatives.add_argument(
        "--corpus",
        metavar="FILE",
        help="where to find negatives (the positives of all pairs, or all documents)",
    )
    _model(negatives)
    defaults = Rules()
    negatives.add_argument(
        "--count",
        type=int,
        default=defaults.count,
        metavar="N",
        help=f"of each pair, 1 to {MAX_NEGATIVES} (%(default)s)",
    )
    negatives.add_argument(
        "--margin",
        type=float,
        default=defaults.margin,
        metavar="X",
        help="how far below the positive's score a negative must stay, as a part of it (%(default)s)",
    )
    _min_score(negatives, defaults.min_score)
    pairs = _command(of, "pairs", _pairs, "find pairs in text without labels")
    teacher = _command(of, "lists", _lists, "make queries of text, with documents that hybrid search scored")
    for each in (pairs, teacher):
        each.add_argument("--corpus", required=True, metavar="FILE", help="texts; titles need .jsonl or .tsv")
        _model(each)
    _min_score(pairs, MIN_SCORE)
    teacher.add_argument(
        "--queries",
        metavar="FILE",
        help="queries of users, a line each or .jsonl (default: made of the texts)",
    )
    _reranker(teacher, "a reranker that scores the documents instead of hybrid search", required=False)
    silver = _command(of, "silver", _silver, "score pairs of near texts by a cross-encoder (Augmented SBERT)")
    silver.add_argument("--pairs", required=True, metavar="FILE", help="scored pairs, .tsv or .jsonl: gold")
    _model(silver)
    _reranker(silver, "a cross-encoder that was trained on the gold pairs", required=True)
    silver.add_argument(
        "--count",
        type=positive,
        default=PER_TEXT,
        metavar="N",
        help="texts to pair with each text, by BM25 and as many by --model (%(default)s)",
    )
    silver.add_argument(
        "--highest", type=float, default=1.0, metavar="X", help="gold score of equal texts (%(default)s)"
    )
    dedupe = _command(of, "dedupe", _dedupe, "drop texts that nearly repeat an earlier one")
    dedupe.add_argument("--corpus", required=True, metavar="FILE")
    dedupe.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD,
        metavar="X",
        help="the least Jaccard similarity of a near-duplicate, over 5 characters (%(default)s)",
    )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    about: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    command.add_argument("--out", required=True, metavar="FILE", help="where to write; .gz packs it")
    command.set_defaults(run=run)
    return command


def _model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", default="default", help="`default`, a published version, a folder or a server's URL"
    )


def _reranker(command: argparse.ArgumentParser, about: str, *, required: bool) -> None:
    command.add_argument(
        "--reranker", required=required, metavar="MODEL", help=f"{about}: a version, a run or a folder"
    )


def _min_score(command: argparse.ArgumentParser, least: float) -> None:
    command.add_argument("--min-score", type=float, default=least, metavar="X", help="cosine (%(default)s)")


def _negatives(options: argparse.Namespace) -> int:
    rules = Rules(options.count, options.margin, options.min_score)
    pairs, corpus = (name and expanded(name) for name in (options.pairs, options.corpus))
    out = _lines_of_json(target(options.out, *filter(None, (pairs, corpus))))
    requested, texts = chosen(options), read_corpus(corpus).texts if corpus else None
    labelled = (
        read_labelled_pairs(pairs, texts) if pairs else _read_judged(options.from_service, requested, texts)
    )
    counts = Counter[str]()
    with open_scorable(options.model, os.environ, step_to_stderr) as model, _writing(out) as write:
        step_to_stderr("encoding and comparing")
        mined = mine_negatives(labelled, model.encode_queries, model.encode_documents, rules, counts)
        rows = _write(write, mined)
        if not rows:
            raise NothingToLearn("No pair has a negative. Give more candidates, or a smaller --margin.")
    _print(
        f"{amount(counts['triples'], 'negative')} of {rows:,} of {amount(counts['pairs'], 'pair')}; "
        f"candidates: {len(labelled.candidates):,}",
        f"pairs with fewer than {rules.count}: {counts['short']:,}; with none, left out: {counts['none']:,}",
        f"pairs dropped: {labelled.blank:,} blank, {labelled.repeated:,} repeated or of equal texts",
        f"candidates dropped as likely answers: {counts['above_margin']:,} above the margin",
    )
    return 0


def _read_judged(url: str, requested: Sequence[str], corpus: Iterable[str] | None) -> Labelled:
    """Reads the judged queries of a service with the documents that most keys call relevant.

    The texts of the documents are those that the service embeds. Judgments of untrusted keys do not count.
    """
    step_to_stderr("reading documents and judgments")
    documents: dict[str, str] = {}
    votes: dict[tuple[str, str], dict[str, bool]] = {}  # The newest judgment of each key.
    for name in fetch_collections(url, requested):
        for document in fetch_documents(url, name):
            id = qualified(name, str(document["id"]))
            documents[id] = get_content(document, document["text"]).whole
        for row in fetch_feedback(url, name):
            if row.get("trusted", True):
                pair = folded(row["query"]), qualified(name, row["id"])
                votes.setdefault(pair, {})[str(row.get("key", ""))] = row["relevant"]
    pairs = (
        (query, documents[id])
        for (query, id), said in votes.items()
        if 2 * sum(said.values()) > len(said) and id in documents
    )
    return label_pairs(pairs, documents.values() if corpus is None else corpus, shown(url))


def _lines_of_json(out: Path) -> Path:
    if layout(out) != ".jsonl":
        raise TrainingError(f"{out} must end in .jsonl or .jsonl.gz, the format of the output.")
    return out


def _pairs(options: argparse.Namespace) -> int:
    check_min_score(options.min_score)
    corpus = expanded(options.corpus)
    out = _lines_of_json(target(options.out, corpus))
    documents = _read_documents(corpus)
    titles = list(title_pairs([(title, text) for title, text in _titled(documents) if title]))
    with open_scorable(options.model, os.environ, step_to_stderr) as model, _writing(out) as write:
        _write(write, titles)
        step_to_stderr("encoding and comparing")
        found = _write(write, neighbor_pairs(documents.texts, model.encode, options.min_score))
        if not titles and not found:
            raise NothingToLearn(f"{corpus} has no pair. Try a lower --min-score.")
    _print(f"{amount(len(titles), 'title')} with text, {amount(found, 'pair')} of mutual nearest neighbours")
    return 0


def _lists(options: argparse.Namespace) -> int:
    corpus = expanded(options.corpus)
    out = _lines_of_json(target(options.out, corpus))
    documents = _read_documents(corpus)
    if options.queries:
        queries = [Query(text) for text in read_corpus(expanded(options.queries)).texts]
    else:
        queries = build_queries(_titled(documents))
    if not queries:
        raise NothingToLearn(f"{corpus} has no title, heading or first sentence for a query.")
    with ExitStack() as opened:
        model = opened.enter_context(open_scorable(options.model, os.environ, step_to_stderr))
        score = None
        if options.reranker:
            score = opened.enter_context(open_reranker(options.reranker, os.environ, normalize=False))
        write = opened.enter_context(_writing(out))
        step_to_stderr("encoding and comparing")
        fields = zip(documents.records, documents.texts, strict=True)
        contents = [get_content(record.fields, text) for record, text in fields]
        found = lists(contents, queries, model)
        count = _write(write, found if score is None else rescore(found, score))
    _print(f"{amount(count, 'list')} of {LISTED} documents, from {amount(len(documents.texts), 'text')}")
    return 0


def _silver(options: argparse.Namespace) -> int:
    pairs = expanded(options.pairs)
    out = _lines_of_json(target(options.out, pairs))
    gold = read_corpus(pairs, SCORED)
    with (
        open_scorable(options.model, os.environ, step_to_stderr) as model,
        open_reranker(options.reranker, os.environ, normalize=True) as score,
        _writing(out) as write,
    ):
        count = _write(write, silver_pairs(gold, model.encode, score, options.count, options.highest))
    _print(f"{amount(len(gold), 'gold pair')} and {amount(count - len(gold), 'silver pair')}")
    return 0


def _titled(documents: FileTexts) -> list[tuple[str, str]]:
    """Returns the title and the text of each document. A missing title is an empty string."""
    return [
        (valid(find_title(record.fields)[0], record.at), text)
        for record, text in zip(documents.records, documents.texts, strict=True)
    ]


def _dedupe(options: argparse.Namespace) -> int:
    corpus = expanded(options.corpus)
    out = target(options.out, corpus)
    if layout(out) != layout(corpus):
        raise TrainingError(f"{options.out} must end as {corpus.name} does, because the format is the same.")
    documents = _read_documents(corpus)
    found = near_duplicates(documents.texts, options.threshold)
    dropped = {duplicate.place for duplicate in found}
    kept = [record for place, record in enumerate(documents.records) if place not in dropped]
    with _writing(out) as write:
        for line in _lines(kept, layout(out)):
            write(line)
    _print(
        f"{amount(len(kept), 'text')} kept of {len(documents.texts):,}; dropped: "
        f"{amount(len(found), 'near-duplicate')}, "
        f"of which {sum(duplicate.similarity == 1 for duplicate in found):,} share every shingle; "
        f"{documents.blank:,} blank"
    )
    differing = [duplicate for duplicate in found if duplicate.similarity < 1] or found
    for duplicate in differing[:_EXAMPLES]:
        both = (documents.texts[place] for place in (duplicate.first, duplicate.place))
        # Not textwrap.shorten: it cuts at spaces, and a Japanese sentence has none.
        plain = [" ".join(text.split()) for text in both]
        first, second = (each if len(each) <= _SHOWN else f"{each[: _SHOWN - 2]} …" for each in plain)
        _print(f"  {duplicate.similarity:.3f}  kept     {first}", f"         dropped  {second}")
    return 0


def _write(write: Callable[[str], object], found: Iterable[Mined | Pair | Listed | Scored]) -> int:
    count = 0
    for row in found:
        line = row._asdict() if isinstance(row, Pair | Scored) else row.line()
        write(json.dumps(line, ensure_ascii=False))
        count += 1
    return count


def _print(*rows: str) -> None:
    sys.stdout.write("".join(f"{row}\n" for row in rows))


class FileTexts(NamedTuple):
    """The documents of a file, in the order of the file."""

    records: list[Record]  # only records with a text
    texts: list[str]  # texts of these records
    blank: int  # dropped lines, which have only white space


def _read_documents(file: Path) -> FileTexts:
    """Reads all texts of a file that are not blank, including repeated texts.

    Raises:
        NothingToLearn: All texts are blank.
        TrainingError: A line cannot be read. The message names the line.

    """
    records = list(read_records(file, TEXTS.columns))
    texts = [build_text(record, TEXTS.columns[0]) if record.fields else "" for record in records]
    there = [place for place, text in enumerate(texts) if text.strip()]
    if not there:
        raise NothingToLearn(f"{file} holds no text.")
    return FileTexts([records[at] for at in there], [texts[at] for at in there], len(texts) - len(there))


def _lines(records: Sequence[Record], layout: str) -> Iterator[str]:
    """Yields the lines of an output file with `records`. `layout` is ".tsv", ".jsonl" or empty for text."""
    if layout == ".tsv":
        yield "\t".join(records[0].fields)
        yield from ("\t".join(record.fields.values()) for record in records)
    elif layout == ".jsonl":
        yield from (json.dumps(dict(record.fields), ensure_ascii=False) for record in records)
    else:
        yield from (record.fields["text"] for record in records)


@contextmanager
def _writing(file: Path) -> Iterator[Callable[[str], object]]:
    """Yields a function that writes one line. `file` is replaced after the block, unless the block fails.

    A .gz file has no timestamp, so the same lines always give the same bytes.
    """
    packed = file.name.lower().endswith(".gz")
    with (
        replaced(file) as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packed else nullcontext(raw) as stream,
    ):
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield lambda line: text.write(f"{line}\n")
        text.detach()  # leaves the stream open
