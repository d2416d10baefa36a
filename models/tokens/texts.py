"""The fixed texts that verify and calibrate a model: ordinary texts, and hard cases for tokenizers.

The reference vectors in golden/ belong to PROOF_TEXTS in this order. After a change of PROOF_TEXTS, the
vectors must be computed again.
"""

from __future__ import annotations

import json
from importlib import resources
from itertools import accumulate

_WORDS = (  # noqa: SIM905  thirty words read better in a row
    "river stone market letter winter engine garden bridge paper copper window signal forest ladder harbour "
    "carries follows repairs measures opens closes under above between quickly slowly seven twelve red green"
).split()


def long_text(words: int) -> str:
    """Returns a pseudorandom text that is the same on every machine (Lehmer generator, multiplier 48271)."""
    picked = []
    number = 1
    for _ in range(words):
        number = number * 48271 % 2147483647
        picked.append(_WORDS[number % len(_WORDS)])
    return " ".join(picked)


def short_texts(count: int) -> list[str]:
    """Returns `count` texts of 1 to 12 words, which are the same on every machine."""
    words = long_text(count * 12).split()
    lengths = [1 + at * 5 % 12 for at in range(count)]
    starts = accumulate(lengths, initial=0)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=False)]


def example_texts() -> list[str]:
    return [json.loads(line)["text"] for line in example_lines()]


def example_lines() -> list[str]:
    """Returns the 320 lines of the example corpus, in JSON. Each `text` has about forty words."""
    return (resources.files(__package__) / "examples.jsonl").read_text(encoding="utf-8").splitlines()


PROOF_TEXTS: tuple[str, ...] = (
    "a",
    "The cat sleeps on the warm stove.",
    "A small animal is dozing where it is warm.",
    "Interest rates were left unchanged on Thursday.",
    "How do I reset the password of my account?",
    "Die Brücke über den Fluss ist seit März gesperrt.",
    "naïve café, Ångström, İstanbul, ﬁne ½",
    "今日は天気がいいので、公園まで歩きました。",
    "机器学习模型把句子变成向量",
    "오늘은 날씨가 좋아서 공원까지 걸었습니다.",
    "Привет, как дела? Всё хорошо!",
    "مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🎉 🇰🇷 thumbs up 👍🏽",
    "tab\tnewline\nreturn\r\nnull\x00bell\x07escape\x1b[0m zero\u200bwidth\ufeff\u00ad\u202eend",
    "e\u0301e\u0300 o\u0308 combining \u0301 alone",
    "def f(x: int) -> str: return f'{x!r}'  # 100% {'a': [1, 2.5e-3]}",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 150,
    "!!!???...",
    "0123456789 3.14159 1,000,000 -40°C",
    long_text(60),
    long_text(5000),
    "語" * 3000,
)
