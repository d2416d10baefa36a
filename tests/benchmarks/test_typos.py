"""The typo benchmark: its edits are single edits of content words, and the same in every run."""

from benchmarks.typos import EDITED, ONE, TWO, edit_all
from models.search.content import Content
from models.search.spelling import count_edits
from training.evaluation.retrieval import Collection


def test_each_query_gets_different_variants_with_an_edited_content_word() -> None:
    queries = {"a": "Which boundaries have laminar layers, there?", "b": "why is it so", "c": "heatshields"}
    collection = Collection({"d": Content("x")}, queries, {}, 0)
    for kind, edits in ((ONE, 1), (TWO, 2)):
        found = [*edit_all(collection, kind)]
        assert found == [*edit_all(collection, kind)]
        assert [each.id for each in found] == ["a"] * EDITED + ["c"] * EDITED
        assert len({each.text for each in found}) == len(found)
        for each in found:
            assert 1 <= count_edits(queries[each.id], each.text) <= edits
            assert each.text.startswith("Which ") == (each.id == "a")
            assert each.text.endswith(" there?") == (each.id == "a")
