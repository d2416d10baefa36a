"""The routes of a collection's synonyms: `PUT`, `GET` and `DELETE /collections/{collection}/synonyms`.

A search uses the synonyms that are stored when it begins (models/search/synonyms.py).
"""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel
from starlette.responses import Response

from models.search.synonyms import (
    MAX_ALL_PHRASES,
    MAX_CHARACTERS,
    MAX_ENTRIES,
    MAX_PHRASES,
    MAX_WORDS,
    parse_phrase,
)
from models.search.terms import CJK_RUN
from service.api.collections import DESCRIBED, PARAMETER, existing
from service.api.openapi import OpenTo, Role, ShownAs, describe, example
from service.auth.audit import audit
from service.errors import Conflict, Empty, NotFound, Storage, Validation
from service.http.bodies import STORED, Slices, check_parameters, json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service

router = APIRouter(prefix="/collections", route_class=RoleRoute, tags=["collections"])
_PATH = f"/{{{PARAMETER}}}/synonyms"

Phrase = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_CHARACTERS)]
Group = Annotated[list[Phrase], Field(min_length=2, max_length=MAX_PHRASES)]
Targets = Annotated[list[Phrase], Field(min_length=1, max_length=MAX_PHRASES)]


class OneWay(BaseModel):
    model_config = ConfigDict(extra="forbid")
    start: Phrase = Field(alias="from", description="The words of a query")
    to: Targets = Field(description="What they also find")


class _Group(RootModel[Group]):
    pass


class SynonymsRequest(BaseModel):
    model_config = example(
        {"groups": [["car", "automobile"]], "one_way": [{"from": "tv", "to": ["television", "flat screen"]}]}
    ) | ConfigDict(extra="forbid")
    # The handler counts the items first, and then validates each.
    groups: Annotated[list[Any], ShownAs(Annotated[list[Group], Field(max_length=MAX_ENTRIES)])] = Field(
        [], description="Each phrase of a group also finds the others"
    )
    one_way: Annotated[list[Any], ShownAs(Annotated[list[OneWay], Field(max_length=MAX_ENTRIES)])] = []
    version: int | None = Field(
        None, strict=True, ge=0, description="The version that these replace; another one is 409. Absent: any"
    )


class SynonymsOut(BaseModel):
    version: int = Field(description="Grows by 1 with each change; 0 before the first")
    groups: list[list[str]]
    one_way: list[OneWay]


class SynonymsVersion(BaseModel):
    version: int


@router.get(
    _PATH,
    **describe(
        Role.READ,
        SynonymsOut,
        open_to=OpenTo.SCOPED,
        raises=[NotFound, Storage],
        parameters=[DESCRIBED],
    ),
)
async def read_synonyms(request: Request, runtime: Service) -> Response:
    """Return the synonyms of a collection. They can be sent again as they are."""
    check_parameters(request)
    return json_response(await _read(runtime, await existing(request, runtime)))


@router.put(
    _PATH,
    **describe(
        Role.WRITE,
        SynonymsVersion,
        open_to=OpenTo.COLLECTIONS,
        raises=[Conflict, Empty, NotFound, Storage],
        parameters=[DESCRIBED],
    ),
)
async def replace_synonyms(
    request: Request, runtime: Service, body: Annotated[SynonymsRequest, STORED]
) -> Response:
    """Replace all synonyms of a collection. Keyword and hybrid search use them from the next search on."""
    check_parameters(request)
    count = len(body.groups) + len(body.one_way)
    if count > MAX_ENTRIES:
        raise Validation(f"There are {count} groups and one-way entries; at most {MAX_ENTRIES} are stored.")
    slices, phrases = Slices(), 0
    groups, one_way = [], []
    for at, value in enumerate(body.groups):
        _check_count(value, f"groups[{at}]", 2)
        group = validated(_Group, value, f"groups[{at}]").root
        phrases = _check_phrases(group, f"groups[{at}]", phrases)
        groups.append(group)
        await slices.rest()
    for at, value in enumerate(body.one_way):
        if isinstance(value, dict):
            _check_count(value.get("to"), f"one_way[{at}].to", 1)
        entry = validated(OneWay, value, f"one_way[{at}]")
        phrases = _check_phrases([entry.start, *entry.to], f"one_way[{at}]", phrases)
        one_way.append({"from": entry.start, "to": entry.to})
        await slices.rest()
    collection = await existing(request, runtime)
    given = {"groups": groups, "one_way": one_way}
    version = await runtime.corpus.store.replace_synonyms(given, collection, body.version)
    audit("replace-synonyms", request.scope, collection=collection, version=version)
    return json_response({"version": version})


@router.delete(
    _PATH,
    **describe(
        Role.WRITE,
        SynonymsVersion,
        open_to=OpenTo.COLLECTIONS,
        raises=[NotFound, Storage],
        parameters=[DESCRIBED],
    ),
)
async def delete_synonyms(request: Request, runtime: Service) -> Response:
    """Delete all synonyms of a collection. The version grows if the collection has synonyms."""
    check_parameters(request)
    collection = await existing(request, runtime)
    stored = await _read(runtime, collection)
    if not stored["groups"] and not stored["one_way"]:
        return json_response({"version": stored["version"]})
    version = await runtime.corpus.store.replace_synonyms({"groups": [], "one_way": []}, collection)
    audit("delete-synonyms", request.scope, collection=collection, version=version)
    return json_response({"version": version})


async def _read(runtime: Runtime, collection: str) -> dict[str, Any]:
    stored = await runtime.corpus.store.get_synonyms(collection)
    return orjson.loads(stored) if stored else {"version": 0, "groups": [], "one_way": []}


def _check_count(phrases: object, name: str, least: int) -> None:
    """Rejects a list of too few or too many phrases. Other values are validated later."""
    if isinstance(phrases, list) and not least <= len(phrases) <= MAX_PHRASES:
        count = f"{len(phrases)} phrase{'' if len(phrases) == 1 else 's'}"
        raise Validation(f"{name} has {count}; give {least} to {MAX_PHRASES}.", param=name)


def _check_phrases(phrases: list[str], name: str, before: int) -> int:
    """Rejects phrases that keyword search cannot find. Returns `before` plus the number of phrases."""
    if before + len(phrases) > MAX_ALL_PHRASES:
        raise Validation(f"{name}: at most {MAX_ALL_PHRASES} phrases are stored together.")
    found = [*map(parse_phrase, phrases)]
    for phrase, (words, _) in zip(phrases, found, strict=True):
        if not words:
            raise Empty(f"{name}: {phrase!r} has no word to look for. Leave it out.")
        if len(words) > MAX_WORDS:
            pairs = ", and each pair of neighboring characters is one" if CJK_RUN.search(phrase) else ""
            raise Validation(
                f"{name}: {phrase!r} has {len(words)} words{pairs}; at most {MAX_WORDS} are allowed."
            )
    if len({*found}) == 1:
        raise Validation(
            f"{name}: a search for {phrases[0]!r} finds the others anyway, because endings, case and accents "
            "do not count. Leave them out."
        )
    return before + len(phrases)
