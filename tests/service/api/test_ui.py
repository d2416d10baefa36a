"""`/ui/`, `/` and `/me`: files of the page and their content policy. Tests of the views are in tests/ui."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.files import PREVIEW_BYTES
from service.api.ui import FOLDER, PAGE_POLICY
from service.files.detection import ENCODINGS
from tests.service.conftest import new_settings, serving
from tests.service.keyed import KEYS, ROLES, bearer, keys_file

FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FIRST_LOAD = 178_000  # bytes
MAX_LINES = 3_140


def test_a_browser_is_led_to_the_page_and_a_program_is_told_where_it_is(client: TestClient) -> None:
    for path in ("/", "/ui"):
        led = client.get(path, headers=BROWSER, follow_redirects=False)
        assert (led.status_code, led.headers["location"]) == (307, "ui/")
    said = client.get("/", headers={"accept": "application/json"}).json()
    assert said["links"] == {"ui": "/ui/", "docs": "/docs", "openapi": "/openapi.json"}
    assert client.head("/").status_code == 200
    assert client.head("/ui/").status_code == 200
    for path in said["links"].values():
        assert client.get(path).status_code == 200
    assert client.post("/", json={"inputs": "red river"}).status_code == 200


@pytest.mark.parametrize("file", ["", *FILES])
def test_every_file_is_served_under_the_policy(client: TestClient, file: str) -> None:
    if file == "index.html":
        pytest.skip("the page itself is /ui/")
    answer = client.get(f"/ui/{file}")
    assert answer.content == (FOLDER / (file or "index.html")).read_bytes()
    assert answer.headers["content-security-policy"] == PAGE_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = client.get(f"/ui/{file}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "file", ["../app.py", "%2e%2e/app.py", "nothing.js", "views", "views/", "index.html"]
)
def test_there_is_no_other_file(client: TestClient, file: str) -> None:
    assert client.get(f"/ui/{file}").status_code == 404


def test_the_page_makes_no_html_of_text_and_names_no_other_host() -> None:
    for file in FILES:
        source = (FOLDER / file).read_text(encoding="utf-8")
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|srcdoc|\.cookie", source
        )
        assert not found, f"{file}: {found}"
        addresses = set(re.findall(r"https?://[^\s\"'`]*", source)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, f"{file}: {addresses}"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("address", "models", "keyed", "options"),
    [
        ("http://127.0.0.1:8000/", "/srv/models", False, "http://127.0.0.1:8000 --models-dir /srv/models"),
        ("https://a.example.com/simile/", "/m", False, "https://a.example.com/simile --models-dir /m"),
        ("http://[::1]:8000/", "/m", False, "'http://[::1]:8000' --models-dir /m"),
        ("http://h/", "/my models/it's", False, r"http://h --models-dir '/my models/it'\''s'"),
        ("http://h/", "/m;rm -r $HOME", False, "http://h --models-dir '/m;rm -r $HOME'"),
        ("http://h/", "/modèles", True, "http://h --models-dir '/modèles'"),
    ],
)
def test_the_page_tells_the_whole_command_of_a_retraining(
    address: str, models: str, keyed: bool, options: str
) -> None:
    """One function builds the command from the page's address and the folder in `/info`."""
    given = f"{json.dumps(address)}, {{ models_dir: {json.dumps(models)} }}, {json.dumps(keyed)}"
    script = f'import {{ retrainCommand }} from "{FOLDER / "text.js"}"; console.log(retrainCommand({given}));'
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script], capture_output=True, text=True, check=True
    )
    key = "SIMILE_SERVICE_KEY=KEY " if keyed else ""
    assert done.stdout == f"{key}simile retrain --from-service {options}\n"
    assert shlex.split(done.stdout)[-1] == models
    for file in ("start.js", "views/versions.js"):
        source = (FOLDER / file).read_text(encoding="utf-8")
        assert 'retrainCommand(addressOf("").href, ' in source
        assert "--from-service" not in source


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_sends_as_much_of_a_file_as_a_preview_takes_and_loses_no_field() -> None:
    """If a preview has no complete row, no column is known. JSON lines then keep all fields as metadata."""
    script = f"""import {{ partsOf, ENCODINGS, SHOWN_BYTES }} from "{FOLDER / "files.js"}";
    const parts = ["jsonl", "text", "file", "csv"].map((format) => partsOf({{ columns: [], format }}, []));
    console.log(JSON.stringify([SHOWN_BYTES, ENCODINGS, ...parts]));"""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script], capture_output=True, text=True, check=True
    )
    most, encodings, *parts = json.loads(done.stdout)
    assert most == PREVIEW_BYTES
    assert {"utf-16-le", "utf-16-be"} <= set(encodings) <= set(ENCODINGS)
    assert parts == [{"metadata": "*"}, {}, {}, {}]


def node(script: str) -> Any:
    """Runs a module of JavaScript that has text.js as `text`. Returns the JSON of the result."""
    script = f'import * as text from "{FOLDER / "text.js"}"; console.log(JSON.stringify({script}))'
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"TZ": "UTC"})
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    "shown", ["a red river", "\U0001f600 a \U0001f600 river", "cafe\u0301 \U0001d49c", "\U0001f600"]
)
def test_code_points_are_cut_from_a_string_as_python_cuts_them(shown: str) -> None:
    places = range(len(shown) + 1)
    pairs = [(start, end) for end in places for start in range(end)]
    several = [(start, start + 1) for start in range(0, len(shown), 2)]
    given = json.dumps(shown)
    cuts = node(
        f"[...{json.dumps(pairs)}.map((pair) => [pair]), {json.dumps(several)}].map((pairs) => "
        f"text.indicesOf({given}, pairs).map(([start, end]) => {given}.slice(start, end)))"
    )
    expected = [[shown[start:end]] for start, end in pairs] + [[shown[start:end] for start, end in several]]
    assert cuts == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_mark_that_reaches_outside_of_a_part_is_cut() -> None:
    shown, pairs = "a red river runs", [[0, 1], [2, 5], [6, 11]]
    for start, end, marks in [(0, 16, ["a", "red", "river"]), (3, 8, ["ed", "ri"]), (5, 6, []), (11, 16, [])]:
        pieces = node(f"text.pieces({json.dumps(shown)}, {start}, {end}, {pairs})")
        assert "".join(piece for piece, _ in pieces) == shown[start:end]
        assert [piece for piece, marked in pieces if marked] == marks


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (1, "document", "1 document"),
        (0, "document", "0 documents"),
        (1234, "document", "1,234 documents"),
        (1, "judged query", "1 judged query"),
        (2, "judged query", "2 judged queries"),
        (1, "chosen document", "1 chosen document"),
        (2, "search", "2 searches"),
    ],
)
def test_a_number_stands_with_the_right_form_of_its_noun(number: int, noun: str, words: str) -> None:
    assert node(f"text.count({number}, {json.dumps(noun)})") == words
    wrong = re.compile(
        r"\$\{(?![A-Z_]+\})[^{}]*\} (?:documents|queries|lines|rows|groups|hits|judgments|versions|texts)\b"
    )
    for file in (*FOLDER.glob("*.js"), *FOLDER.glob("views/*.js")):
        assert not wrong.search(file.read_text(encoding="utf-8")), f"{file.name}: use count()"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_preselects_what_a_preview_proposes() -> None:
    types = {"Kosten": "decimal_comma", "Datum": "date"}
    found = {"text": ["body"], "title": "Betreff", "id": "Nummer", "types": types}
    names = ["body", "Betreff", "Nummer", "Kosten", "Datum", "Team", "constructor", ""]
    script = f"""import {{ roleOf }} from "{FOLDER / "files.js"}";
    const found = {json.dumps(found)};
    console.log(JSON.stringify({json.dumps(names)}.map((name) => roleOf(name, found))));"""
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    roles = ["text", "title", "id", "=decimal_comma", "=date", "metadata", "metadata", ""]
    assert json.loads(done.stdout) == roles


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("20201126T171631-triples-c81e5503", "v2 · triples · 26 Nov 2020, 17:16"),
        ("20201126T171630-all-minilm-l6-v2-c81e5503", "v1 · all-minilm-l6-v2 · 26 Nov 2020, 17:16"),
        (
            "20210101T000000-all-minilm-l6-v2-ranking-00000000",
            "v3 · all-minilm-l6-v2-ranking · 1 Jan 2021, 00:00",
        ),
        ("20210101T000000-0-00000000", "0 · 1 Jan 2021, 00:00"),
        ("20211301T000000-a-00000000", "a · at an unknown time"),
        ("not a version", "not a version"),
    ],
)
def test_a_version_has_a_short_name(version: str, name: str) -> None:
    """Versions are numbered by age in any order of the list. One that is not listed has no number."""
    listed = [
        "20210101T000000-all-minilm-l6-v2-ranking-00000000",
        "20201126T171630-all-minilm-l6-v2-c81e5503",
        "20201126T171631-triples-c81e5503",
    ]
    models = [{"version": one} for one in listed]
    assert node(f"text.nameOf({json.dumps(version)}, {json.dumps(models)})") == name


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize(
    ("days", "begin"), [(0, "today "), (-1, "yesterday "), (1, "tomorrow "), (-2, ""), (2, ""), (-366, "")]
)
def test_a_time_of_these_days_is_told_by_the_day(days: int, begin: str) -> None:
    at = "new Date(new Date().setHours(12, 34, 0, 0) + DAYS * 864e5)".replace("DAYS", str(days))
    expected = r"\d{1,2} \w{3} \d{4}, 12:34" if not begin else f"{begin}12:34"
    assert re.fullmatch(expected, node(f"text.moment({at}.toISOString())"))


def test_the_page_stays_small() -> None:
    sources = [(FOLDER / file).read_bytes() for file in FILES]
    assert sum(map(len, sources)) < FIRST_LOAD  # all views, although a first load needs less
    assert sum(source.count(b"\n") for source in sources) <= MAX_LINES
    assert max(source.count(b"\n") for source in sources) <= 300


def test_without_the_page_the_service_is_as_it_was(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, ui=False)) as client:
        assert client.get("/", headers=BROWSER).status_code == 405
        for path in ("/ui", "/ui/", "/ui/app.js"):
            assert client.get(path).status_code == 404
        assert "get" not in client.get("/openapi.json").json()["paths"]["/"]
        assert client.post("/", json={"inputs": "red river"}).status_code == 200


def test_me_names_the_key_and_its_role(client: TestClient, tmp_path: Path, tiny_models_dir: Path) -> None:
    assert client.get("/me").json() == {"name": None, "role": "admin", "scope": None}
    settings = new_settings(tmp_path, tiny_models_dir, api_keys_file=keys_file(tmp_path))
    with serving(settings) as keyed:
        assert keyed.get("/ui/").status_code == 200
        assert keyed.get("/me").status_code == 401
        for name, key in KEYS.items():
            me = {"name": name, "role": ROLES[name], "scope": None}
            assert keyed.get("/me", headers=bearer(key)).json() == me
