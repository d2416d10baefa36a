"""A prompt template: its ids surround every text, its [MASK] is pooled, and no text changes this."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from models.encoder import Encoder
from models.errors import BadTokens, TooLong, Unsupported
from models.graph import reference
from models.graph.backbone import Backbone, read_backbone
from models.publishing.layout import published_tokenizer
from models.publishing.publish import publish
from models.sources.folder import read_source
from models.sources.template import has_template, with_template
from models.store import ModelStore
from models.tokens.tokenizer import Tokenizer, Tokens
from tests.tiny import MAX_LENGTH, ROUNDING, tiny_source

TEMPLATE = 'the letter "{}" is [MASK].'
# By the tiny vocabulary: [CLS] 2, [SEP] 3, [MASK] 4, letters from 5, " 42, . 54, words from 109.
BEFORE = [2, 109, 131, 42]
AFTER = [42, 114, 4, 54, 3]
ROOM = MAX_LENGTH - len(BEFORE) - len(AFTER)


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    return content


def _write(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def template_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source folder whose tokenizer has TEMPLATE and whose pooling is at its [MASK]."""
    folder = tiny_source(tmp_path_factory.mktemp("template") / "prompt", pooling="mask:2")
    content, distance = with_template(_content(folder), TEMPLATE)
    assert distance == 2
    _write(folder, published_tokenizer(content, MAX_LENGTH))
    return folder


@pytest.fixture(scope="module")
def encoder(template_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    store = ModelStore(tmp_path_factory.mktemp("template-store"))
    return store.open(publish(store, template_folder).version)


def test_the_ids_are_those_of_the_template_around_those_of_the_text(template_folder: Path) -> None:
    tokenizer = Tokenizer(template_folder / "tokenizer.json", MAX_LENGTH)
    assert tokenizer.tokenize(["the cat"]) == [Tokens([*BEFORE, 109, 139, *AFTER], truncated=False)]
    assert tokenizer.tokenize([""]) == [Tokens([*BEFORE, *AFTER], truncated=False)]


@pytest.mark.parametrize(
    "text", ["a", "a a", 'the letter "', 'the letter "a" is [MASK].', '" is [MASK].', '"', "[CLS] a [SEP]"]
)
@pytest.mark.parametrize("template", [TEMPLATE, 'a a "{}" a [MASK] a', "a {} a [MASK]"])
def test_a_text_of_the_templates_own_tokens_is_still_text(
    tiny_source: Path, tmp_path: Path, template: str, text: str
) -> None:
    content, distance = with_template(_content(tiny_source), template)
    bare = tokenizers.Tokenizer.from_file(str(tiny_source / "tokenizer.json"))
    bare.no_padding()
    bare.no_truncation()
    left, _, right = template.partition("{}")

    def ids(part: str) -> list[int]:
        found: list[int] = bare.encode(part, add_special_tokens=False).ids
        return found

    (row,) = Tokenizer(_write(tmp_path, content), MAX_LENGTH).tokenize([text])
    assert row.ids == [2, *ids(left), *ids(text), *ids(right), 3]
    assert row.ids[-1 - distance] == 4
    assert distance == len(ids(right)) - ids(right).index(4)


@pytest.mark.parametrize("left", [False, True])
def test_a_long_text_is_cut_and_the_template_is_not(template_folder: Path, left: bool) -> None:
    library = tokenizers.Tokenizer.from_file(str(template_folder / "tokenizer.json"))
    library.enable_truncation(MAX_LENGTH, direction="left" if left else "right")
    tokenizer = Tokenizer(template_folder / "tokenizer.json", MAX_LENGTH)
    texts = [
        *("river " * words + "stone" for words in (ROOM - 1, ROOM, ROOM + 1, 3000)),
        '" is [MASK]. ' * 3000,
        "語" * 9000,
    ]
    found = tokenizer.tokenize(texts, left=left)
    assert [row.truncated for row in found] == [False, *[True] * 5]
    for text, row in zip(texts, found, strict=True):
        assert row.ids == library.encode(text).ids
        assert (len(row.ids), row.ids[:4], row.ids[-5:]) == (MAX_LENGTH, BEFORE, AFTER)
    with pytest.raises(TooLong) as caught:
        tokenizer.tokenize([texts[1]], truncate=False)
    assert (caught.value.given, caught.value.allowed) == (MAX_LENGTH + 1, MAX_LENGTH)


def test_ids_that_a_client_sends_must_have_the_template(encoder: Encoder) -> None:
    row = [*BEFORE, 139, *AFTER]
    assert encoder.check_ids(row) == Tokens(row, truncated=False)
    for wrong in ([2, 139, 3], [2, 139, *AFTER], [*BEFORE, 139, 3], [*BEFORE[:-1], *AFTER]):
        with pytest.raises(BadTokens, match="the model's own"):
            encoder.check_ids(wrong)


def test_a_mask_in_the_text_is_not_the_one_that_is_pooled(encoder: Encoder, template_folder: Path) -> None:
    texts = ["the cat", "[MASK]", "red [MASK] market [MASK].", 'a" is [MASK]. [SEP]', "[MASK] " * 200]
    rows = [tokens.ids for tokens in encoder.tokenize(texts)]
    source = read_source(template_folder)
    backbone = Backbone.from_config(source.config)
    tensors = read_backbone(source.weights, backbone)
    states = reference.token_vectors(backbone, tensors, "last", rows)
    at_mask = np.stack([state[len(state) - 3] for state in states])
    expected = at_mask / np.linalg.norm(at_mask, axis=1, keepdims=True)
    assert all(row[len(row) - 3] == 4 for row in rows)
    np.testing.assert_allclose(encoder.forward(rows), expected, atol=ROUNDING)
    np.testing.assert_allclose(encoder.encode(texts).vectors, expected, atol=ROUNDING)
    theirs = states[2][rows[2].index(4)]
    assert expected[2] @ theirs / np.linalg.norm(theirs) < 0.99, "the text's own mask is another vector"


@pytest.mark.parametrize(
    "post_processor",
    [
        {"type": "BertProcessing"},
        {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False},
    ],
)
def test_every_way_to_add_the_special_tokens_gives_the_same(
    tiny_source: Path, post_processor: dict[str, Any]
) -> None:
    expected, distance = with_template(_content(tiny_source), TEMPLATE)
    post_processor |= {"sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    found = with_template(_content(tiny_source) | {"post_processor": post_processor}, TEMPLATE)
    assert found == (expected, distance)


def test_the_template_says_mask_whatever_the_tokenizer_calls_it(tiny_source: Path, tmp_path: Path) -> None:
    renamed = json.loads((tiny_source / "tokenizer.json").read_text().replace("[MASK]", "<mask>"))
    content, distance = with_template(renamed, TEMPLATE)
    assert distance == 2
    (row,) = Tokenizer(_write(tmp_path, content), MAX_LENGTH).tokenize(["the cat"])
    assert row.ids == [*BEFORE, 109, 139, *AFTER]


def test_without_special_tokens_the_template_is_all_there_is(tiny_source: Path, tmp_path: Path) -> None:
    content, distance = with_template(_content(tiny_source) | {"post_processor": None}, "the {} [MASK]")
    assert distance == 0
    (row,) = Tokenizer(_write(tmp_path, content), MAX_LENGTH).tokenize(["cat"])
    assert row.ids == [109, 139, 4]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("the [MASK].", r"must have \{\} once"),
        ("{} and {} is [MASK].", r"must have \{\} once"),
        ("{} is what?", r"must have \[MASK\] once"),
        ("[MASK] is {}.", r"must have \[MASK\] once, and after the text"),
        ("{} is [MASK] [MASK].", r"must have \[MASK\] once"),
    ],
)
def test_a_template_that_cannot_be_one_is_refused(tiny_source: Path, template: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        with_template(_content(tiny_source), template)


def test_a_second_template_and_a_tokenizer_without_a_mask_are_refused(tiny_source: Path) -> None:
    content = _content(tiny_source)
    once, _ = with_template(content, TEMPLATE)
    assert content == _content(tiny_source), "what was given is not changed"
    assert (has_template(once), has_template(content)) == (True, False)
    with pytest.raises(Unsupported, match="has a template already"):
        with_template(once, TEMPLATE)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    with pytest.raises(Unsupported, match="no mask token"):
        with_template(content, TEMPLATE)


def test_a_maximum_that_the_template_fills_is_refused(template_folder: Path) -> None:
    with pytest.raises(Unsupported, match="leaves no room"):
        Tokenizer(template_folder / "tokenizer.json", len(BEFORE) + len(AFTER))


def _without_template(folder: Path) -> None:
    _write(folder, _content(tiny_source(folder.with_name("plain"))))


def _pooling(mode: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without_template, r"mask:2 does not point to .* adds \['\[SEP\]'\]"),
        (_pooling("mask:1"), "mask:1 does not point to"),
        (_pooling("mask:5"), "mask:5 does not point to"),
        (_pooling("mask:02"), "mask:02.* is not supported"),
        (_pooling("mask"), "mask.* is not supported"),
    ],
)
def test_a_place_that_is_not_the_templates_mask_is_refused(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    folder = tiny_source(tmp_path / "model", pooling="mask:2")
    _write(folder, with_template(_content(folder), TEMPLATE)[0])
    assert read_source(folder).head.pooling == ("mask:2",)
    change(folder)
    with pytest.raises(Unsupported, match=reason):
        read_source(folder)


def test_transformers_reads_the_published_tokenizer_with_its_template(
    template_folder: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    store = ModelStore(tmp_path)
    folder = store.folder(publish(store, template_folder).version)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("the cat")["input_ids"] == [*BEFORE, 109, 139, *AFTER]
    long = tokenizer("river " * 900, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    assert long == [*BEFORE, *[128] * ROOM, *AFTER]
