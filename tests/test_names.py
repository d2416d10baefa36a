"""One thing has one name: retired identifiers do not come back (docs/decisions/names.md)."""

import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A regular expression of retired identifiers, and what to use.
RETIRED = {
    r"DesiredVersion|desired|next_target|wish(es)?|want(ed)?|asked": "requested",
    r"Live|live|go_live|went_live": "active",
    r"lone(_\w+)?|alone_threads|(has|opens?|drop)_alone": "single_text",
    r"_?passing|PASSING": "matching, transient",
    r"_?proved|open_proved|proven": "verified",
    r"Exchange|exchange": "RequestContext",
    r"[Ss]eam|[Ss]upervisor": "interface, watchdog",
    r"(MOST|LEAST|FEW|ENOUGH)(_\w+)?|\w+_(MOST|LEAST)": "MAX_…, MIN_…",
    r"\w*([Jj]udgement|JUDGEMENT|[Nn]eighbour|[Cc]olour|[Cc]atalogue|[Bb]ehaviour)\w*": "American spelling",
    r"\w*([Tt]oken|[Nn]ormal|[Qq]uant|[Oo]ptim|[Ss]tandard|[Ii]nitial|[Ss]ummar)is(e\w*|ing|ation)": "-ize",
}
# These are retired in the product only. Tests may have a class Store or a helper such as `rows_of`.
RETIRED_IN_PRODUCT = {
    r"Store": "ModelStore, DocumentStore",
    r"_?[a-z]\w*_of": "a verb: get_…, build_…, parse_…",
}
# Fields on disk and on the wire.
STORED = {"wanted", "quantised", "same_neighbours", "judgements"}
PRODUCT = ("service", "models", "training", "simile_client", "benchmarks")
REPLACED_LATER = "training/retraining/"  # Redesigned with the learned ranking.
MODULES = {"aside", "caller", "few", "kept", "lone", "many", "one", "passing", "turns", "utils", "words"}


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("the checkout is not a git repository")
    return listed.stdout.splitlines()


def retired(path: str) -> list[str]:
    """Returns the retired identifiers of a file, each with its line and the name to use."""
    table = RETIRED | (RETIRED_IN_PRODUCT if path.startswith(PRODUCT) else {})
    found = []
    with (ROOT / path).open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            name = token.string
            if token.type != tokenize.NAME or name in STORED or name.startswith("test_"):
                continue
            found += [
                f"{path}:{token.start[0]}: {name}; use {use}"
                for pattern, use in table.items()
                if re.fullmatch(pattern, name)
            ]
    return found


def test_no_retired_identifier_comes_back() -> None:
    found = [line for path in tracked() if (ROOT / path).exists() for line in retired(path)]
    assert not found, "\n".join(found)


def test_modules_are_named_by_their_content() -> None:
    named = {path: Path(path).stem for path in tracked() if path.startswith(PRODUCT)}
    nothing = [
        path for path, stem in named.items() if stem in MODULES and not path.startswith(REPLACED_LATER)
    ]
    assert not nothing, nothing


@pytest.mark.parametrize(
    "line", ["wish = 1\n", "def lone_threads(): ...\n", "MOST_ROWS = 3\n", "x.judgement\n"]
)
def test_a_retired_identifier_is_found(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_names.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(line)
    assert len(retired("module.py")) == 1
