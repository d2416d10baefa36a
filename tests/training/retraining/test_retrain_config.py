"""`retrain --config`: text that cannot be learned from, and folders that it cannot have."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from models.files.folders import lock
from models.manifest import REPORT, REPORT_PAGE
from tests.service.process import free_port, plain_environment
from tests.service.store.test_storage_faults import needs_mounts
from tests.training.conftest import WORDS
from tests.training.jobs import noised, tiny_config
from training.__main__ import main
from training.retraining.one import Job

Retrain = Callable[..., int]


def documents(count: int = 180) -> str:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=12)) for _ in range(count))
    return "".join(
        json.dumps({"id": f"d{at}", "title": text[:20], "text": text}) + "\n" for at, text in enumerate(texts)
    )


def config(job: Job, corpus: str = 'file = "documents.jsonl"', base: str = "active") -> Path:
    text = tiny_config(
        corpus, base, models=job.store.root, work=job.work, sets=Path(str(job.data)), steps=3, batch=8
    )
    file = job.store.root.parent / "retrain.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def retrain(job: Job) -> Retrain:
    """Run the command; its exit status. `content` is the corpus."""

    def run(content: str | bytes | None = None, name: str = "documents.jsonl", **changed: str) -> int:
        raw = documents() if content is None else content
        (job.store.root.parent / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
        changed.setdefault("corpus", f'file = "{name}"')
        return main(["retrain", "--config", str(config(job, **changed))])

    return run


@pytest.mark.long
def test_held_out_text_judges_and_the_report_tells_of_it(
    job: Job, retrain: Retrain, capsys: pytest.CaptureFixture[str]
) -> None:
    active = job.store.wanted()
    assert retrain() == 0
    said = capsys.readouterr()
    assert "is published and wanted" in said.out
    assert "Search for a text by its title" in said.out
    version = job.store.wanted()
    assert version not in {active, None}
    report = json.loads((job.store.folder(str(version)) / REPORT).read_bytes())
    counts = report["meta"]["documents"]
    assert counts["all"] == 180
    assert (
        sum(
            counts[name] for name in ("trained_on", "held_out", "held_out_for_dev", "left_out_as_near_copies")
        )
        == 180
    )
    assert 36 <= counts["held_out"] <= 72
    assert report["meta"]["corpus_report"]["texts"] == counts["trained_on"]
    assert report["candidate"]["own"]["titles"]["queries"] <= counts["held_out"]
    assert not {"hits", "each"} & report["candidate"]["own"]["titles"]["hybrid"].keys()
    assert report["candidate"]["own"]["titles"]["lexical"] == report["active"]["own"]["titles"]["lexical"]
    assert 0 < report["overlap"]["titles"] <= 1
    assert {row["name"] for row in report["rows"]} >= {"stsb", "own titles", "texts per second", "megabytes"}
    assert [gain["name"] for gain in report["gains"]] == ["own titles", "own known"]
    assert report["meta"]["looks"] == 1
    assert job.store.verify(str(version)).scores["own"].keys() == {
        f"{name}{mode}" for name in ("titles", "known") for mode in ("", " hybrid")
    }
    page = (job.store.folder(str(version)) / REPORT_PAGE / "report.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {version}\n\nSearch for a text by its title: ".replace("_", r"\_"))
    assert f"**Accepted: not worse than the active version.** Compared with {active}" in page
    assert {*report["changed"]} == {"gained", "lost"}
    [titles] = [row for row in report["rows"] if row["name"] == "own titles"]
    both = f"{titles['active']:.4f} | {titles['candidate']:.4f}"
    assert f"| Search for a text by its title, dense | nDCG@10 | {both} |" in page
    html = (job.store.folder(str(version)) / REPORT_PAGE / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 4
    assert not re.search(r"<(img|link|script)|(src|href)=.?https?:", html), "it needs no other file"
    assert "<td>Search for a text by its title, dense</td>" in html.replace(' style="text-align:left"', "")
    named = set(re.findall(r"\]\((.*?)\)", page))
    assert named == {"gains.svg", "plane.svg", "spectrum.svg", "cosines.svg"}
    for file in named:
        ET.parse(job.store.folder(str(version)) / REPORT_PAGE / file)
    assert retrain() == 4
    assert "by this recipe" in capsys.readouterr().out
    (job.work / "mine").mkdir()
    [kept] = job.work.glob("*/run")
    assert retrain(documents(190)) == 0
    [other] = job.work.glob("*/run")
    assert other != kept, "runs pile up in the work folder"
    assert (job.work / "mine").is_dir()


@pytest.mark.long
def test_a_worse_candidate_is_refused(job: Job, retrain: Retrain, tmp_path: Path) -> None:
    active = str(job.store.wanted())
    noised(tmp_path / "bad", job.store.folder(active), 0.5)
    assert retrain(base=str(tmp_path / "bad")) == 3
    assert job.store.wanted() == active


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "status", "says"),
    [
        ("long.txt", b"a text\n" + b"x" * 100_000_000 + b"\n", 1, "line 2 is longer than 1 MiB"),
        ("bytes.txt", b"a text\n\xff\xfe\n", 1, "line 2 is not UTF-8"),
        ("broken.jsonl", b'{"text": "x"}\n{"text": \n', 1, "line 2 is not JSON"),
        ("copies.txt", b"the very same line\n" * 1_000_000, 4, "1 documents are too few; at least 100"),
        ("one.txt", b"one document\n", 4, "1 documents are too few"),
        ("blank.txt", b" \n\t\n" * 1000, 4, "holds no text"),
        ("empty.txt", b"", 4, "holds no text"),
    ],
)
def test_text_that_cannot_be_learned_from_ends_well(
    job: Job,
    retrain: Retrain,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    status: int,
    says: str,
) -> None:
    before = sorted(path.name for path in job.store.root.iterdir())
    assert retrain(content, name) == status
    said = capsys.readouterr()
    assert says in said.out + said.err
    assert "Traceback" not in said.err
    assert sorted(path.name for path in job.store.root.iterdir()) == before


def test_two_at_once_are_one_and_the_other_says_so(
    job: Job, retrain: Retrain, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock(job.store.root)
    assert held is not None
    assert retrain() == 5
    assert "Another retraining is at work" in capsys.readouterr().err


def test_a_service_that_is_down_is_said(
    job: Job, retrain: Retrain, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retrain(corpus=f'service = "http://127.0.0.1:{free_port()}"') == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_what_the_file_says_is_not_said_beside_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retrain", "--config", str(config(job)), "--steps", "3"]) == 1
    assert "--steps goes with no --config" in capsys.readouterr().err
    assert main(["retrain", "--config", str(config(job)), "--minutes", "3"]) == 1
    assert "--minutes goes with no --config" in capsys.readouterr().err
    assert main(["retrain", "--corpus", "rows.tsv", "--minutes", "3"]) == 1
    assert "--minutes goes with --from-service" in capsys.readouterr().err


@pytest.mark.long
@needs_mounts
@pytest.mark.parametrize(("options", "says"), [("size=700k", "No space left"), ("ro", "Read-only")])
def test_a_models_folder_that_takes_nothing_more_is_left_as_it_was(job: Job, options: str, says: str) -> None:
    """The folder is moved onto a file system of its own, with no room for a second version, or read-only."""
    (job.store.root.parent / "documents.jsonl").write_text(documents(), encoding="utf-8")
    room = options if options != "ro" else "size=64m"
    script = f"""
        mkdir /mnt/models && mount -t tmpfs -o {room} tmpfs /mnt/models || exit 99
        cp -a "{job.store.root}/." /mnt/models/ && mount --bind /mnt/models "{job.store.root}" || exit 98
        {f'mount -o remount,ro,bind "{job.store.root}"' if options == "ro" else ":"} || exit 97
        "$@"; status=$?
        ls -A "{job.store.root}"; exit $status
    """
    command = [sys.executable, "-m", "training", "retrain", "--config", str(config(job))]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs tmpfs /mnt; {script}", "sh", *command],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    left = set(done.stdout.split("\n")) - {""}
    assert left == {path.name for path in job.store.root.iterdir()}
