"""`simile search` and `simile check-search` against a running service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.search.measures import judge
from service.cli.commands.check_search import Estimate, estimate
from service.cli.commands.search import BOLD, PLAIN, mark, show
from tests.parts.commands import run
from tests.parts.json_server import json_server
from tests.service.process import Service, free_port

DOCUMENTS = {"river": "the red river", "stone": "a blue stone", "garden": "a green garden"}


@pytest.fixture
def url(service: Service, _emptied: None) -> str:
    service.put(DOCUMENTS).raise_for_status()
    return str(service.client.base_url)


def test_a_search_prints_rank_score_id_and_text(url: str) -> None:
    done = run("search", "red", "river", "--mode", "lexical", "--url", url)
    assert done.returncode == 0, done.stderr
    [head, text] = done.stdout.splitlines()
    rank, score, id = head.split()
    assert (rank, id, text.strip()) == ("1", "river", "the red river")
    assert float(score) > 0


def test_json_is_the_answer_of_the_service(service: Service, url: str) -> None:
    done = run("search", "stone", "--json", "--top-k", "2", "--mode", "dense", "--url", url)
    answer = json.loads(done.stdout)
    parameters: dict[str, str | int] = {"q": "stone", "k": 2, "mode": "dense", "highlight": "true"}
    expected = service.client.get("/search", params=parameters).json()
    assert answer["hits"] == expected["hits"]
    assert len(answer["hits"]) == 2


def test_collections_are_listed_for_people_and_programs(service: Service, url: str) -> None:
    other = {"documents": [{"id": "a", "text": "a red stone"}]}
    service.client.post("/collections/other/documents", json=other).raise_for_status()
    for address in (url, f"{url}/collections/other"):
        done = run("collections", "--url", address)
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines()]
        assert rows[0] == ["collection", "documents", "mode", "learned", "ranking"]
        assert rows[1:] == [["default", "3", "hybrid", "no"], ["other", "1", "hybrid", "no"]]
    done = run("collections", "--json", "--url", url)
    assert json.loads(done.stdout) == service.client.get("/collections").json()
    service.client.delete("/collections/other").raise_for_status()


def test_a_search_without_hits_and_a_wrong_filter_say_so(url: str) -> None:
    nothing = run("search", "x", "--filter", '{"year": 2020}', "--url", url)
    assert (nothing.returncode, nothing.stdout) == (0, "No document was found.\n")
    assert nothing.stderr.startswith("Warning: ")
    wrong = run("search", "x", "--filter", "{", "--url", url)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "filter" in wrong.stderr


def test_a_hit_cannot_control_the_terminal_and_marks_only_terms() -> None:
    hit = {
        "id": "a\x1b[2J",
        "score": 0.5,
        "title": "red\x07",
        "text": "not shown",
        "highlights": {"title": [[0, 3]], "text": [[0, 2], [11, 14]]},
        "snippet": {"start": 10, "text": "a red\n\x9b1m b"},
    }
    assert show(1, hit) == "  1  0.500  a [2J  red\n     a red  1m b"
    bold = show(1, hit, bold=True)
    assert bold.replace(BOLD, "").replace(PLAIN, "") == show(1, hit)
    assert mark("a red stone", [[12, 15]], 10) == f"a {BOLD}red{PLAIN} stone"


def write(folder: Path, *lines: str) -> Path:
    file = folder / "golden.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_check_passes_at_the_bar_and_fails_below_it(url: str, tmp_path: Path) -> None:
    file = write(tmp_path, "query\tid", "river\triver", "blue stone\tstone\t2", "red\tgarden")
    done = run("check-search", file, "--mode", "lexical", "--min-ndcg", "0.66", "--url", url)
    assert done.returncode == 0, done.stderr
    [first, *_, worst] = done.stdout.splitlines()
    assert "nDCG@10 0.667 (95 %: 0.000 to 1.000) of 3 queries" in first
    assert worst == "  0.000  red: garden not in the first 100"
    below = run("check-search", file, "--mode", "lexical", "--min-ndcg", "0.67", "--url", url, "--json")
    assert below.returncode == 1
    assert below.stderr == "The mean nDCG@10 is 0.6667, below --min-ndcg 0.67.\n"
    report = json.loads(below.stdout)
    assert report["scores"] == {"river": 1.0, "blue stone": 1.0, "red": 0.0}
    assert report["worst"] == [
        {"query": "red", "ndcg10": 0.0, "expected": [{"id": "garden", "grade": 1.0, "place": None}]}
    ]


def test_the_figures_are_those_of_the_hits(service: Service, url: str, tmp_path: Path) -> None:
    grades = {"garden": 3.0, "river": 1.0}
    file = write(tmp_path, *(f"stone\t{id}\t{grade}" for id, grade in grades.items()))
    hits = service.client.get("/search", params={"q": "stone", "mode": "dense"}).json()["hits"]
    report = json.loads(run("check-search", file, "--mode", "dense", "--url", url, "--json").stdout)
    ids = [hit["id"] for hit in hits]
    assert report["scores"]["stone"] == pytest.approx(judge(ids, grades)["ndcg10"])
    assert [row["place"] for row in report["worst"][0]["expected"]] == [ids.index(id) + 1 for id in grades]


def test_a_comparison_pairs_the_queries_of_two_versions(service: Service, url: str, tmp_path: Path) -> None:
    file = write(tmp_path, "river\triver", "stone\tgarden")
    version = service.client.get("/info").json()["model_version"]
    done = run("check-search", file, "--compare", version, "--url", url, "--json")
    compared = json.loads(done.stdout)["compared"]
    assert compared["version"] == version
    assert compared["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    unknown = run("check-search", file, "--compare", "20200101T000000-gone-00000000", "--url", url)
    assert unknown.returncode == 3
    assert "20200101T000000-gone-00000000" in unknown.stderr


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["river"], "golden.tsv:1: write QUERY, tab, document id"),
        (["a\tb", "river\tx\t0"], "golden.tsv:2: the grade '0' is not a number above 0"),
        (["a\tb", "river\tx\tNaN"], "golden.tsv:2: the grade 'NaN' is not a number above 0"),
        (["river\tx\t1e308", "river\ty\t1e308"], "golden.tsv:1: the grade '1e308' is not between"),
        (["a\tb", "a\tb\t2"], "golden.tsv:2: 'b' has another grade"),
        ([""], "golden.tsv has no judgment"),
    ],
)
def test_a_file_that_cannot_be_used_has_a_status_of_its_own(
    tmp_path: Path, lines: list[str], fault: str
) -> None:
    done = run("check-search", write(tmp_path, *lines), "--url", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr


def test_a_service_that_does_not_answer_has_a_status_of_its_own(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run("check-search", write(tmp_path, "a\tb"), "--url", url)
    assert done.returncode == 3
    assert "does not answer" in done.stderr
    assert run("search", "a", "--url", url).returncode == 1


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--url", "foo"], "--url 'foo' is not an address"),
        (["--url", "http://127.0.0.1:1/é"], "is not an address"),
        (["--collection", "a/b"], "--collection 'a/b' cannot be a collection"),
        (["--compare", "a\nb"], "is not the name of a version"),
        (["--key-file", "no-such-file"], "The key file no-such-file cannot be read"),
    ],
)
def test_wrong_options_are_not_taken_for_a_silent_service(
    tmp_path: Path, options: list[str], fault: str
) -> None:
    done = run("check-search", write(tmp_path, "a\tb"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr


@pytest.mark.parametrize("key", ["sk-secret\nsecond", "sk-secret€", ""])
@pytest.mark.parametrize("command", [["search", "a"], ["export", "-"], ["mcp"]])
def test_a_malformed_key_is_an_error_that_does_not_show_it(
    tmp_path: Path, key: str, command: list[str]
) -> None:
    file = tmp_path / "key"
    file.write_text(key, encoding="utf-8")
    done = run(*command, "--url", "http://127.0.0.1:1", "--key-file", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "must contain one line of printable ASCII" in done.stderr
    assert "secret" not in done.stderr


def test_another_server_with_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red river\n", encoding="utf-8")
    commands = {
        ("search", "a"): 1,
        ("search", "a", "--json"): 1,
        ("collections",): 1,
        ("check-search", str(write(tmp_path, "a\tb"))): 3,
        ("export", "-"): 1,
        ("import", str(tmp_path / "a.txt")): 1,
    }
    with json_server(lambda *_: (200, {})) as url:
        for command, status in commands.items():
            done = run(*command, "--url", url)
            assert (done.returncode, done.stdout) == (status, ""), command
            assert "The server is not Simile: its answer has no " in done.stderr


def test_an_argument_that_is_not_utf8_is_wrong_usage() -> None:
    done = run("search", "a\udcff", "--url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "it is not UTF-8 text" in done.stderr


def test_the_interval_is_that_of_the_normal_distribution_for_many_queries() -> None:
    values = [0.0, 1.0] * 200
    half = 1.96 * 0.5 / 400**0.5
    assert estimate(values) == pytest.approx(Estimate(0.5, 0.5 - half, 0.5 + half), abs=0.005)
    assert estimate([0.25]) == (0.25, 0.25, 0.25)
