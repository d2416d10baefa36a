"""Queries that a text makes of itself, and the text without them."""

from training.mining.queries import Query, queries_of

TEXT = "the river runs to the market. The bridge is red. A cat sleeps."
REST = "The bridge is red. A cat sleeps."


def test_a_title_asks_for_the_text_behind_it() -> None:
    assert queries_of([("The  river", "The river: is red")]) == [Query("The river", 0, "is red")]
    assert queries_of([("The river", "is red")]) == [Query("The river", 0, "is red")]
    assert queries_of([("The river", "The river")]) == []


def test_a_first_sentence_asks_for_the_others() -> None:
    assert queries_of([("", "blank"), ("", TEXT)]) == [Query("the river runs to the market.", 1, REST)]
    assert queries_of([("", "Go on. The river runs to the market.")]) == []  # two words say nothing
    assert queries_of([("", "the river runs to the market and nowhere else")]) == []
    japanese = "東京都の人口は多いです。大阪は二番目に大きい都市です。"
    assert queries_of([("", japanese)]) == [
        Query("東京都の人口は多いです。", 0, "大阪は二番目に大きい都市です。")
    ]


def test_a_title_stays_in_front_of_what_is_left_unless_it_is_the_query() -> None:
    title, first, heading = queries_of([("A  map", f"# Before you begin\n{TEXT}")])
    assert (title.title, first.title, heading.title) == ("", "A map", "A map")
    of_text = "The river runs to the market"
    assert [query.title for query in queries_of([(of_text, TEXT)])] == ["", ""]  # the text begins with it
    assert queries_of([("The river", TEXT)])[-1].title == ""


def test_a_heading_asks_for_its_document() -> None:
    text = f"# Before you begin\n{TEXT}\n\n## Reset it\nopen the window\n"
    found = queries_of([("", text)])
    assert found[:2] == [
        Query("Before you begin", 0, f"{TEXT} ## Reset it open the window"),
        Query("Reset it", 0, f"# Before you begin {TEXT} open the window"),
    ]
    assert found[2] == Query("the river runs to the market.", 0, f"{REST} open the window")


def test_what_several_documents_say_names_none_of_them() -> None:
    documents = [("News", TEXT), ("news", "open the window"), ("Letter", TEXT.upper())]
    assert [query.text for query in queries_of(documents)] == ["Letter"]


def test_each_passage_of_a_long_document_asks_for_its_rest() -> None:
    sentences = [f"the {word} is here with the river now." for word in ("red", "green", "blue", "old")]
    long = " ".join(sentence for sentence in sentences for _ in range(16))  # 8 words each, 128 of a kind
    found = queries_of([("", long)])
    whole = [f"{sentence}." for sentence in long.rstrip(".").split(". ")]
    passages = [whole[at : at + 18] for at in range(18, len(whole), 18)]  # 144 words
    assert found[1:] == [Query(first, 0, " ".join(others)) for first, *others in passages]
    assert [query.text for query in found] == sentences
