"""The service that the page's tests look at, started with the project's own Python. Imports none of it."""

import gzip
import hashlib
import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from tests.waiting import LIMIT, until

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("SIMILE_EVAL_DATA")
PYTHON = ROOT / os.environ.get("SERVICE_PYTHON", ".venv/bin/python")
DOCUMENTS = 5000
QUERY = "how does vitamin D affect bone density"
KEYS = {"ada": ("admin", "for-tests-an-admin"), "rita": ("read", "for-tests-a-reader")}

HOSTILE = [
    "<script>document.title='stolen'</script> a script in a document",
    "<img src=x onerror=\"document.title='stolen'\"> a picture in a document",
    "<a href=\"javascript:document.title='stolen'\">a link</a> in a document",
    "an override \u202e that turns letters round",
]
LONG_LINE = "bone " * 200_000  # a million characters in one line


class Service:
    """`python -m service` in `folder`, up between `with` and its end; `prepared` has filled FOLDER/models."""

    def __init__(self, folder: Path, *, keys: bool = False, **variables: str) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")
        }
        self.environment |= {
            "SIMILE_PORT": str(port),
            "SIMILE_DATA_DIR": str(folder / "data"),
            "SIMILE_MODELS_DIR": str(folder / "models"),
            "SIMILE_WORKERS": "2",
            "SIMILE_MAP_DOCUMENTS": "0",  # the tests bring maps of their own
            **variables,
        }
        headers = {}
        if keys:
            lines = [
                f"{name}:{role}:{hashlib.sha256(key.encode()).hexdigest()}"
                for name, (role, key) in KEYS.items()
            ]
            (folder / "keys").write_text("\n".join(lines), encoding="utf-8")
            self.environment["SIMILE_API_KEYS_FILE"] = str(folder / "keys")
            headers = {"authorization": f"Bearer {KEYS['ada'][1]}"}
        self.client = httpx2.Client(base_url=self.url, timeout=LIMIT, trust_env=False, headers=headers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.client.close()

    def start(self) -> None:
        log = self.folder / "service.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "service"], cwd=ROOT, env=self.environment, stdout=out, stderr=out
            )
        until(lambda: self.process.poll() is not None or self._is_ready(), log.read_text)
        assert self.process.poll() is None, log.read_text()

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)

    def get(self, path: str, **parameters: str | int) -> Any:
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object = None) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

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
        """Run `python -m service …` with the same settings."""
        subprocess.run([PYTHON, "-m", "service", *words], cwd=ROOT, env=self.environment, check=True)


def prepared(folder: Path, model: str) -> str:
    """Make FOLDER/models (prepare.py). The version to activate second."""
    command = [str(PYTHON), "-m", "tests.ui.prepare", str(folder), model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return str(done.stdout.split()[-1])


def corpus(number: int = DOCUMENTS) -> list[dict[str, Any]]:
    """Abstracts of SciFact where its files are (SIMILE_EVAL_DATA), else made-up texts; with metadata."""
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
