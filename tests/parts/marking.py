"""A slow, obvious reference of highlights, and random texts in many scripts."""

import unicodedata
from itertools import product
from random import Random

from models.search.terms import get_terms, parse_query

# Words as people write them. Some have accents, ligatures, marks, joiners or codes, or fold to other lengths.
SCRIPTS = {
    "Latin": "straße Łódź naïve ﬁne co\u00adoperate Ångström e\u0301cole printer searching ABC-123-A it's "
    "10.0.0.1 C++ parseHTMLResponse user_name œuvre ½ m² price¹ ĳs THE Ｆｕｌｌ 𝐛𝐨𝐥𝐝".split(),  # noqa: RUF001
    "Cyrillic": "йогурт ёлка Ўзбек поиск принтер её край-город 15-й й".split(),
    "Greek": "Ώρα ἄνθρωπος ΣΊΣΥΦΟΣ λόγος ΐ".split(),
    "Arabic": "كِتَابٌ مـــكتبة ﷲ الأَوَّل می‌خواهم ١٢٣ ﻻ کتاب".split(),
    "Hebrew": 'שָׁלוֹם עִבְרִית סֵפֶר ﬡֱלֹהִים צה"ל'.split(),
    "Devanagari": "हिन्दी भाषा पुस्तक क़लम १२ प्रिंटर".split(),
    "Thai": "ภาษาไทย หนังสือ น้ำ ผู้ใช้".split(),
    "Han": "東京都 京都 中文搜索 打印机卡纸 𠮷野家 ㍻ ㎏ 葛\U000e0100飾 「京」、".split(),
    "Kana": "ｶﾞｽ カタカナ がぎ か\u3099 プリンター ㌔ です。東京".split(),
    "Hangul": "한글 검색 서울에서 \u1112\u1161\u11ab\u1100\u1173\u11af 프린터".split(),
}
SIGNS = ["", "", "", "", ",", ".", "!", "”", "…", ")", "™", "。", "、", "？", "\u200b", "-", "/"]  # noqa: RUF001


def write(random: Random, script: str, words: int) -> str:
    """Returns a random text. Some words are in Latin, capitals or another normal form."""
    found = []
    for _ in range(words):
        word = random.choice(SCRIPTS[script if random.random() < 0.8 else "Latin"])
        change = random.random()
        if change < 0.1:
            word = word.upper()
        elif change < 0.2:
            word = unicodedata.normalize(random.choice(["NFC", "NFD", "NFKC", "NFKD"]), word)
        elif change < 0.3 and word.isascii():
            word = word.title()
        found.append(random.choice(["", "", "(", "“", "«", "™"]) + word + random.choice(SIGNS))
    return random.choice([" ", "\n", "\u00a0", "\u3000"]).join(found)


def locate(text: str, query: str) -> list[tuple[int, int]]:
    """Returns the ranges of the query's terms by trying each part of each word."""
    parsed = parse_query(query)
    covered: set[tuple[int, int]] = set()
    start = 0
    for word in text.split():
        start = text.index(word, start)
        spans = _locate(word, {*parsed.terms}, {*parsed.beginnings})
        covered |= {(start + first, start + last) for first, last in spans}
        start += len(word)
    ranges: list[list[int]] = []
    for first, last in sorted(covered):
        if ranges and first < ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], last)
        else:
            ranges.append([first, last])
    return [(first, last) for first, last in ranges]


def _locate(word: str, wanted: set[str], beginnings: set[str]) -> set[tuple[int, int]]:
    """Returns the smallest parts of a word that have a term of the word."""
    has = {*get_terms(word)}
    terms = has & wanted
    firsts = {term[0] for term in has} & beginnings
    if not terms and not firsts:
        return set()
    borders = [at for at in range(len(word) + 1) if _is_border(word, at)]
    parts = {
        (first, last): {*get_terms(word[first:last])}
        for first, last in product(borders, borders)
        if first < last
    }
    found = set()
    for term in terms:
        found |= _get_smallest([part for part, those in parts.items() if term in those])
    for character in firsts:
        found |= _get_smallest([part for part, those in parts.items() if character in those])
    return found


def _get_smallest(parts: list[tuple[int, int]]) -> set[tuple[int, int]]:
    return {
        (first, last)
        for first, last in parts
        if not any((first, last) != other and first <= other[0] and other[1] <= last for other in parts)
    }


def _is_border(word: str, at: int) -> bool:
    """Returns whether a term may begin or end at a place of a word."""
    if at in {0, len(word)}:
        return True
    before, after = word[at - 1], word[at]
    if "\u200b" in before + after:  # A space without width.
        return True
    if unicodedata.category(after) in {"Mn", "Mc", "Cf"} or after in "ﾞﾟ" or "\u1160" <= after <= "\u11ff":
        return False  # They belong to the character before.
    if "No" in {unicodedata.category(before), unicodedata.category(after)}:
        return True
    response = word[at : at + 3]  # As in HTMLResponse.
    humps = after.isupper() and (before.islower() or (len(response) == 3 and response[1:].islower()))
    return humps or not (_is_letter(before) and _is_letter(after))


def _is_letter(character: str) -> bool:
    """Returns whether a character can be within a term of an alphabet."""
    name = unicodedata.name(character, "")
    if name.startswith(("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "HANGUL", "SQUARE")):
        return False
    return unicodedata.category(character)[0] in "LNM" or unicodedata.category(character) == "Cf"
