"""The service for tests of the page. Imports only `tests` of the project."""

import gzip
import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.parts.served import PYTHON, ROOT, Served
from tests.waiting import until

DATA = os.environ.get("SIMILE_EVAL_DATA")
DOCUMENTS = 5000
QUERY = "how does vitamin D affect bone density"
KEYS = {
    "ada": ("admin", "for-tests-an-admin"),
    "rita": ("read", "for-tests-a-reader"),
    "tess": ("read", "for-tests-a-tenant"),
}
SCOPES = {"tess": '::::{"collections":["tess-*"]}'}  # the end of the line in the keys file

HOSTILE = [
    "<script>document.title='stolen'</script> a script in a document",
    "<img src=x onerror=\"document.title='stolen'\"> a picture in a document",
    "<a href=\"javascript:document.title='stolen'\">a link</a> in a document",
    "an override \u202e that turns letters round",
]
LONG_LINE = "bone " * 200_000  # a million characters in one line


class Service(Served):
    """A service for tests of the page. `prepared` must have filled FOLDER/models."""

    def __init__(self, folder: Path, *, keys: bool = False, **variables: str) -> None:
        lines = [
            f"{name}:{role}:{hashlib.sha256(key.encode()).hexdigest()}{SCOPES.get(name, '')}"
            for name, (role, key) in KEYS.items()
        ]
        # The tests write their own maps.
        told = {"SIMILE_WORKERS": "2", "SIMILE_MAP_DOCUMENTS": "0"} | variables
        super().__init__(folder, lines if keys else [], KEYS["ada"][1], **told)

    def put(self, documents: list[dict[str, Any]]) -> None:
        lines = "\n".join(json.dumps(one) for one in documents)
        answer = self.client.post(
            "/documents", content=lines, headers={"content-type": "application/x-ndjson"}
        )
        assert answer.json()["failed"] == 0, answer.text

    def activate(self, version: str) -> None:
        self.post(f"/models/{version}/activate")
        until(lambda: self.get("/models")["active"] == version)

    def command(self, *words: str) -> None:
        """Runs `python -m service …` with the settings of this service."""
        subprocess.run([PYTHON, "-m", "service", *words], cwd=ROOT, env=self.environment, check=True)


def prepared(folder: Path, model: str) -> str:
    """Make FOLDER/models with prepare.py. Return the version to activate second."""
    command = [str(PYTHON), "-m", "tests.ui.prepare", str(folder), model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return str(done.stdout.split()[-1])


def corpus(number: int = DOCUMENTS) -> list[dict[str, Any]]:
    """Returns documents with metadata: abstracts of SciFact if SIMILE_EVAL_DATA has it, else random texts."""
    chance = random.Random(0)
    file = Path(DATA, "scifact", "corpus.jsonl.gz") if DATA else None
    rows = list(_abstracts(file)) if file and file.is_file() else list(_made_up(chance, number))
    return [
        {
            "metadata": {
                "year": chance.randrange(1990, 2021),
                "kind": chance.choice(["trial", "review", "note"]),
            }
        }
        | row
        for row in rows[:number]
    ]


def _abstracts(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["text"].strip():
                yield {"id": row["_id"], "title": row["title"], "text": row["text"]}


def _made_up(chance: random.Random, number: int) -> Iterator[dict[str, Any]]:
    words = "bone density vitamin river market stone engine garden bridge paper window forest cell".split()
    for at in range(number):
        yield {
            "id": f"made-{at}",
            "title": " ".join(chance.choices(words, k=5)),
            "text": " ".join(chance.choices(words, k=60)),
        }
