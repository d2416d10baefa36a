"""Wrong names and values end a command before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs commands in a process where importing torch fails. Prints the status and the output of each.
RUN = """
import contextlib, io, json, sys
from training.__main__ import main
for command in json.loads(sys.stdin.read()):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(command.split())
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, said.getvalue()]))
"""
SERVICE = "http://127.0.0.1:1"  # where nothing answers
TRAIN = "--corpus texts.txt --out run"
RIGHT = f"train simcse-unsup {TRAIN}"
MISTAKES = [
    (f"train simcse-unsub {TRAIN}", "There is no recipe 'simcse-unsub'. Did you mean simcse-unsup?"),
    ("train simcse-unsup --corpus none.txt --out run", "There is no file none.txt."),
    (f"train simcse-unsup {TRAIN} --base ./nowhere", "There is no model './nowhere'."),
    (f"train simcse-unsup {TRAIN} --base active", "`active` is for retrain"),
    (f"train simcse-unsup {TRAIN} --base ~nosuchuser/x", "There is no home folder for '~nosuchuser' in"),
    (f"train simcse-unsup {TRAIN} --seed {1 << 63}", "a whole number from 0 to 9223372036854775807"),
    (f"train simcse-unsup {TRAIN} --device gpu", "'gpu' is none of auto, cpu, cuda and cuda:N"),
    (f"train simcse-unsup {TRAIN} --set optim.lrr=1e-5", "optim has no key 'lrr'; 'lr' is."),
    (f"train simcse-unsup {TRAIN} --set optim.lr=5.0", "optim.lr must be above 0 and at most 1"),
    (f'train simcse-unsup {TRAIN} --set pool="maen"', "pool 'maen' is not known; 'mean' is."),
    (f"train simcse-unsup {TRAIN} --set optim.lr", "is not KEY=VALUE"),
    (f"train simcse-unsup {TRAIN} --data ./none", "none is not a folder."),
    (f"train simcse-unsup {TRAIN} --minutes 5", "--minutes is for a recipe of stages"),
    (f"train adapt {TRAIN} --set seed=1", "adapt runs several recipes"),
    (f"train mine.toml {TRAIN}", "The recipe mine: the recipe has no key 'poool'; 'pool' is."),
    (f"retrain --from-service {SERVICE}", f": {SERVICE} cannot be reached"),
    (f"retrain --from-service {SERVICE} --recipe triples --set seed=-1", "seed must be"),
    (f"retrain --from-service {SERVICE} --recipe adapt", "adapt runs several recipes"),
    ("retrain --corpus texts.txt --recipe pears", "There is no recipe 'pears'. Did you mean pairs?"),
    ("retrain --corpus texts.txt --recipe pairs --base ./nowhere", "There is no model './nowhere'."),
    ("retrain --config retrain.toml", "There is no recipe 'tripels'. Did you mean triples?"),
    ("retrain --config judged.toml", "none.tsv."),
    ("advise --config sets.toml", "none is not a folder."),
    ("schedule --config retrain.toml", "There is no recipe 'tripels'. Did you mean triples?"),
    ("retrain --from-service http://me:secret@[::1", "[::1 is no address."),
    (f"advise --from-service {SERVICE}/", f": {SERVICE}/ cannot be reached"),
    ("report --corpus none.txt", "There is no file none.txt."),
    ("report --corpus texts.txt --recipe simcse", "There is no recipe 'simcse'."),
    ("export run", "run holds no run of `python -m training train`."),
    ("evaluate defualt --data .", "defualt is not a model"),
    ("extend-vocabulary new --corpus none.txt", "none.txt"),
    ("mine dedupe --corpus none.txt --out new.txt", "none.txt"),
    ("mine pairs --corpus texts.txt --out pairs.tsv", "must end in .jsonl"),
]

FILES = {
    "broken/torch/__init__.py": "raise SystemExit('torch was imported')\n",
    "texts.txt": "The first text.\nThe second text.\n",
    "mine.toml": 'poool = "mean"\n',
    "judged.toml": '[corpus]\nfile = "texts.txt"\n[judgements]\nfile = "none.tsv"\n',
    "sets.toml": '[corpus]\nfile = "texts.txt"\n[gate]\ndata = "none"\n',
    "retrain.toml": '[corpus]\nfile = "texts.txt"\n[train]\nrecipe = "tripels"\n',
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, str]]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
    commands: list[str] = [RIGHT, *(command for command, _ in MISTAKES)]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=kept | {"PYTHONPATH": f"{folder / 'broken'}:{Path.cwd()}"},
    )
    rows = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(commands, rows, strict=True))


@pytest.mark.long
def test_what_is_right_imports_torch(answers: dict[str, tuple[object, str]]) -> None:
    assert answers[RIGHT][0] == "torch was imported"


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_told_before_torch_is_imported(
    answers: dict[str, tuple[object, str]], command: str, words: str
) -> None:
    status, said = answers[command]
    assert status in (1, 2)
    assert words in said
    assert "Traceback" not in said
