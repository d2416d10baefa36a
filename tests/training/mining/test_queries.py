"""Queries made from parts of a text, and the rest of the text without them."""

from training.mining.queries import Query, build_queries

TEXT = "the river runs to the market. The bridge is red. A cat sleeps."
REST = "The bridge is red. A cat sleeps."


def test_a_title_asks_for_the_text_behind_it() -> None:
    assert build_queries([("The  river", "The river: is red")]) == [Query("The river", 0, "is red")]
    assert build_queries([("The river", "is red")]) == [Query("The river", 0, "is red")]
    assert build_queries([("The river", "The river")]) == []


def test_a_first_sentence_asks_for_the_others() -> None:
    assert build_queries([("", "blank"), ("", TEXT)]) == [Query("the river runs to the market.", 1, REST)]
    assert build_queries([("", "Go on. The river runs to the market.")]) == []  # two words say nothing
    assert build_queries([("", "the river runs to the market and nowhere else")]) == []
    japanese = "東京都の人口は多いです。大阪は二番目に大きい都市です。"
    assert build_queries([("", japanese)]) == [
        Query("東京都の人口は多いです。", 0, "大阪は二番目に大きい都市です。")
    ]


def test_a_title_stays_in_front_of_what_is_left_unless_it_is_the_query() -> None:
    title, first, heading = build_queries([("A  map", f"# Before you begin\n{TEXT}")])
    assert (title.title, first.title, heading.title) == ("", "A map", "A map")
    of_text = "The river runs to the market"
    assert [query.title for query in build_queries([(of_text, TEXT)])] == ["", ""]  # the text begins with it
    assert build_queries([("The river", TEXT)])[-1].title == ""


def test_a_heading_asks_for_its_document() -> None:
    text = f"# Before you begin\n{TEXT}\n\n## Reset it\nopen the window\n"
    found = build_queries([("", text)])
    assert found[:2] == [
        Query("Before you begin", 0, f"{TEXT} ## Reset it open the window"),
        Query("Reset it", 0, f"# Before you begin {TEXT} open the window"),
    ]
    assert found[2] == Query("the river runs to the market.", 0, f"{REST} open the window")


def test_what_several_documents_say_names_none_of_them() -> None:
    documents = [("News", TEXT), ("news", "open the window"), ("Letter", TEXT.upper())]
    assert [query.text for query in build_queries(documents)] == ["Letter"]


def test_each_passage_of_a_long_document_asks_for_its_rest() -> None:
    sentences = [f"the {word} is here with the river now." for word in ("red", "green", "blue", "old")]
    long = " ".join(sentence for sentence in sentences for _ in range(16))  # 8 words each, 128 of a kind
    found = build_queries([("", long)])
    whole = [f"{sentence}." for sentence in long.rstrip(".").split(". ")]
    passages = [whole[at : at + 18] for at in range(18, len(whole), 18)]  # 144 words
    assert found[1:] == [Query(first, 0, " ".join(others)) for first, *others in passages]
    assert [query.text for query in found] == sentences
