"""Fits generated requests to the served model before they are sent.

A generated prompt name, token id, dimension or version is well-formed, but the tiny model does not know it.
The service would reject most requests early, and the code after these checks would hardly be tested. Values
of a wrong type, or outside of the bounds of the OpenAPI document, are sent unchanged.

schemathesis loads this module (schemathesis.toml). __main__.py passes the model's facts in the variable
CONTRACT_FACTS.
"""

import atexit
import itertools
import json
import os
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis

FACTS: dict[str, Any] = json.loads(os.environ["CONTRACT_FACTS"])
DIMENSION, VOCABULARY, LONGEST = FACTS["dimension"], FACTS["vocabulary"], FACTS["max_length"]
COLLECTION = "/collections/{collection}/"  # Without the last slash, DELETE could remove the known collection.
NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
)  # A valid name by the OpenAPI document. Invalid names are not replaced.
FILES = ("report.md", "gains.svg")
MAX_HITS = 50_000  # SIMILE_MAX_HITS
WITH_SYNTAX = 'river "red stone" -blue'
LONGEST_PHRASE = 100  # Of synonyms, in characters.
MAX_FLOAT = 10**308
YEAR = re.compile(r"^\d{4}(?=-)")
counted: Counter[str] = Counter()


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    parameters = case.path_parameters or {}
    for name, known in (("version", FACTS["versions"]), ("file", FILES), ("id", FACTS["ids"])):
        if name in parameters:
            parameters[name] = _now_and_then(parameters[name], known)
    if case.path.startswith(COLLECTION) and NAME.fullmatch(str(parameters["collection"])):
        parameters["collection"] = _now_and_then(parameters["collection"], [FACTS["collection"]])
    if isinstance(case.query, dict):
        _fit(case.query)
        plain = case.path.removeprefix(COLLECTION.rstrip("/"))  # The rules are the same in every collection.
        _fit_query(f"{case.method} {plain}", case.query)
    if isinstance(case.body, dict):
        case.body = _whole(case.body)
        _fit(case.body)
        _fit_said(case.body)
        _fit_synonyms(case.body)
        if isinstance(case.body.get("parameters"), dict):
            _fit(case.body["parameters"])
            if _is_rows(case.body.get("inputs")):  # token ids take no prompt
                case.body["parameters"].pop("prompt_name", None)


@schemathesis.hook  # type: ignore[untyped-decorator]
def after_call(context: Any, case: Any, response: Any) -> None:
    counted[f"{case.operation.label} {response.status_code}"] += 1


atexit.register(lambda: Path(FACTS["counts"]).write_text(json.dumps(counted), encoding="utf-8"))


def _fit_said(body: dict[str, Any]) -> None:
    """Uses existing documents in some judgments and events, and makes events valid.

    An event's position must fit its page. Its time must be in the past, here without a leap second. A schema
    cannot state these rules.
    """
    for said in [body, *_listed(body, "feedback"), *_listed(body, "events")]:
        if not isinstance(said, dict) or not {"relevant", "search_id"} & said.keys():
            continue
        if "id" in said:
            said["id"] = _now_and_then(said["id"], FACTS["ids"])
        if _is_count(said.get("position")) and isinstance(said.get("shown"), list):
            said["position"] = max(said["position"], len(said["shown"]))
        if isinstance(said.get("at"), str):
            said["at"] = YEAR.sub("2020", said["at"]).replace(":60", ":59")


def _listed(body: dict[str, Any], name: str) -> list[Any]:
    found = body.get(name)
    return found if isinstance(found, list) else []


def _fit(options: dict[str, Any]) -> None:
    """Fit the fields of a body, or the parameters of a query, to the model."""
    for name in ("inputs", "input", "ids"):
        if _is_rows(options.get(name)):
            options[name] = _fit_ids(options[name])
            options.pop("prompt_name", None)
    for name in ("dimensions", "output_dimension"):
        if _is_count(options.get(name)):
            options[name] = min(options[name], DIMENSION)
    if _is_count(options.get("max_tokens"), -(2**63)):
        options["max_tokens"] = max(options["max_tokens"], LONGEST)
    if isinstance(options.get("prompt_name"), str):
        options["prompt_name"] = FACTS["prompts"][0]
    if isinstance(options.get("model"), str):
        options["model"] = _now_and_then(options["model"], FACTS["versions"])
    if options.get("truncate") in (False, "NONE"):  # A generated text may be too long without truncation.
        del options["truncate"]
    queries = options.get("queries")
    if isinstance(queries, list) and queries:
        _fit_queries(options, queries)


def _fit_query(operation: str, query: dict[str, Any]) -> None:
    """Changes query parameters that require or exclude each other. OpenAPI cannot state such rules."""
    names = {"query", "id", "key", "user"}
    if operation in ("DELETE /feedback", "DELETE /events") and not names & query.keys():
        query["id"] = "none"
    if isinstance(query.get("collection"), str):
        query["collection"] = _now_and_then(query["collection"], [FACTS["collection"], "*"])
    if operation == "GET /documents" and "id" in query:
        for name in ("after", "limit", "filter"):
            query.pop(name, None)
    if operation == "GET /search" and isinstance(query.get("id"), str):
        query["id"] = _now_and_then(query["id"], FACTS["ids"])
        for name in ("q", "mode", "prompt_name", "rerank", "syntax", "typos"):
            query.pop(name, None)
    elif operation == "GET /search":
        query.setdefault("q", "a river")
        if query.get("syntax") == "true":
            query["q"] = WITH_SYNTAX
        _fit_mode(query)


def _fit_queries(options: dict[str, Any], queries: list[Any]) -> None:
    if all(map(_is_vector, queries)):
        options["queries"] = [_fit_vector(query) for query in queries]
        options["model"] = FACTS["versions"][0]
    for query in queries:
        if isinstance(query, dict) and isinstance(query.get("id"), str):
            query["id"] = _now_and_then(query["id"], FACTS["ids"])
    if not all(isinstance(query, str) for query in queries):  # Modes, prompts and rerankers read texts only.
        for name in ("mode", "prompt_name", "rerank", "syntax", "typos"):
            options.pop(name, None)
    elif options.get("syntax") is True:
        options["queries"] = [WITH_SYNTAX] * len(queries)
    share = MAX_HITS // len(queries)  # Hits of a query. OpenAPI cannot limit k times queries.
    for name in ("k", "offset"):
        if _is_count(options.get(name)):
            options[name] = min(options[name], share // 2)
    _fit_mode(options)


def _fit_synonyms(body: dict[str, Any]) -> None:
    """Replaces valid phrases by distinct words. A schema cannot say that a phrase needs a word."""
    numbers = itertools.count()

    def fit(phrase: Any) -> Any:
        is_valid = isinstance(phrase, str) and 0 < len(phrase) <= LONGEST_PHRASE
        return f"w{next(numbers)}" if is_valid else phrase

    for group in _listed(body, "groups"):
        if isinstance(group, list):
            group[:] = map(fit, group)
    for pair in _listed(body, "one_way"):
        if isinstance(pair, dict):
            to = _listed(pair, "to")
            to[:] = map(fit, to)
            pair.update({"from": fit(pair["from"])} if "from" in pair else {})


def _fit_mode(options: dict[str, Any]) -> None:
    """Removes options that the mode does not support, and prompts from hybrid searches."""
    if options.get("mode") == "dense" or "min_score" in options:  # Dense search looks for no words.
        options.pop("typos", None)
    if options.get("mode") == "lexical":  # Keyword search has no passages.
        options.pop("passages", None)
    if options.get("mode") in ("lexical", "hybrid"):
        for name in ("min_score", "prompt_name"):
            options.pop(name, None)


def _whole(value: Any) -> Any:
    """Returns `value` with whole numbers of 64 bits as int, and larger numbers as float.

    3.0 is an integer to JSON Schema, but not to the service. Filters compare 64-bit integers and any float.
    JSON Schema does not know that difference.
    """
    if isinstance(value, dict):
        return {name: _whole(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_whole(member) for member in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not -(2**63) <= value < 2**63:
        return float(value) if abs(value) < MAX_FLOAT else value
    return int(value) if value == int(value) else value


def _now_and_then(value: Any, known: Any) -> Any:
    """Replaces about half of all values by one of `known`. Equal values have equal results."""
    number = zlib.crc32(str(value).encode(errors="replace"))
    return known[number // 2 % len(known)] if number % 2 else value


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _integer(value: Any) -> Any:
    """Undoes the conversion of a large integer to a float by `_whole`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_row(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_count(_integer(member), 0) for member in value)


def _is_rows(value: object) -> bool:
    return _is_row(value) or (isinstance(value, list) and bool(value) and all(map(_is_row, value)))


def _fit_ids(value: list[Any]) -> list[Any]:
    if not _is_row(value):
        return [_fit_ids(row) for row in value]
    first, last = FACTS["special"]
    return [first, *(_integer(id) % VOCABULARY for id in value[: LONGEST - 2]), last]


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fit_vector(value: list[float]) -> list[float]:
    """Returns a vector of the model's dimension that is neither zero nor infinite in float32."""
    bounded = [min(max(number, -1e30), 1e30) for number in value]
    return [1.0, *bounded, *[0.5] * DIMENSION][:DIMENSION]
