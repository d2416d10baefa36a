"""Test if the running service keeps to its OpenAPI document: `make test-contract`.

schemathesis sends allowed and forbidden requests to a service with tiny models; the document must promise
each answer. Three runs at once test the routes of collections, all other routes, and all other routes with
the key of an administrator.

Exit status 0: every answer was promised, and at least `--at-least` requests were sent.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from models import cpus
from models.manifest import REPORT, REPORT_PAGE, Manifest
from models.publishing.publish import publish
from models.store import ModelStore
from tests.service.keyed import KEYS, keys_file
from tests.service.process import Service
from tests.tiny import MAX_LENGTH, WIDTH, tiny_source
from tests.waiting import until

HERE = Path(__file__).parent
PROMPTS = {"query": "for: ", "document": ""}
DOCUMENTS = {
    f"{color}-{number}": f"a {color} river {number}" for color in ("red", "blue") for number in range(9)
}


COLLECTION = "known"  # a collection with the same documents as the default one
MIRRORED = r"^/collections/\{collection\}/"  # plain routes, repeated within a collection


class Part(NamedTuple):
    """A group of routes that is tested in a run of its own."""

    options: tuple[str, ...]  # options of schemathesis
    share: float  # share of --examples
    keyed: bool = False


PARTS = {
    "plain": Part((f"--exclude-path-regex={MIRRORED}",), 1),
    "collections": Part((f"--include-path-regex={MIRRORED}",), 1 / 2),
    "keyed": Part((f"--exclude-path-regex={MIRRORED}",), 1 / 10, keyed=True),
}


class Held(NamedTuple):
    sound: bool
    requests: int
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    parser.add_argument(
        "--schemathesis", default=".venv-contract/bin/schemathesis", help="the program (%(default)s)"
    )
    parser.add_argument("--examples", type=int, default=100, help="of each operation and phase (%(default)s)")
    parser.add_argument("--at-least", type=int, default=5000, help="requests in all (%(default)s)")
    parser.add_argument("--only", choices=PARTS, help="one of the three")
    arguments, more = parser.parse_known_args()
    program = [arguments.schemathesis, f"--config-file={HERE / 'schemathesis.toml'}", "run", "--no-color"]

    def hold(name: str) -> Held:
        part = PARTS[name]
        command = [*program, f"--max-examples={max(1, int(arguments.examples * part.share))}"]
        with tempfile.TemporaryDirectory(prefix="simile-contract-") as folder:
            return held(Path(folder), [*command, *part.options, *more], keyed=part.keyed)

    names = [arguments.only] if arguments.only else list(PARTS)
    print(f"{', '.join(names)}: this takes some minutes.", flush=True)
    failed, requests = False, 0
    with ThreadPoolExecutor(min(len(names), cpus.available())) as pool:
        for name, found in zip(names, pool.map(hold, names), strict=True):
            print(f"\n{name}\n{found.said}", flush=True)
            failed |= not found.sound
            requests += found.requests
    print(
        f"\n{requests:,} requests in all; {'a promise was broken' if failed else 'every promise was kept'}."
    )
    if requests < arguments.at_least:
        print(f"That is fewer than {arguments.at_least:,} (--at-least, --examples).")
    return int(failed or requests < arguments.at_least)


def held(folder: Path, command: Sequence[str], *, keyed: bool) -> Held:
    """Run the schemathesis `command` against a new service in `folder`, with keys if `keyed`."""
    versions = published(folder / "models")
    variables = {"SIMILE_API_KEYS_FILE": str(keys_file(folder))} if keyed else {}
    key = ["--header", f"Authorization: Bearer {KEYS['boss']}"] if keyed else []
    counts = folder / "counts.json"
    facts = {
        "dimension": WIDTH,
        "max_length": MAX_LENGTH,
        "vocabulary": 200,
        "special": [2, 3],  # [CLS] and [SEP]
        "prompts": list(PROMPTS),
        "versions": versions,
        "ids": list(DOCUMENTS),
        "collection": COLLECTION,
        "counts": str(counts),
    }
    with Service(folder, None, **variables) as service:
        if keyed:
            service.client.headers["authorization"] = f"Bearer {KEYS['boss']}"
        for at in ("", f"/collections/{COLLECTION}"):
            service.put(DOCUMENTS, at).raise_for_status()
        activate(service, versions[0])  # a version to go back to
        url = f"{service.client.base_url}/openapi.json"
        began = time.monotonic()
        done = subprocess.run(
            [*command, *key, url],
            env={**os.environ, "CONTRACT_FACTS": json.dumps(facts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        said = [done.stdout]
        healthy = service.client.get("/health").status_code == 200
        stopped = service.stop() == 0
        if not (healthy and stopped):
            said.append(service.log.read_text())
    told, requests = report(counts, seconds)
    return Held(done.returncode == 0 and healthy and stopped, requests, "\n".join([*said, told]))


def activate(service: Service, version: str) -> None:
    service.client.post(f"/models/{version}/activate").raise_for_status()
    client = service.client
    until(lambda: client.get("/models").json()["active"] == version, lambda: client.get("/models").text)


def report(counts: Path, seconds: float) -> tuple[str, int]:
    """Return the statuses of each operation as text, and the number of requests."""
    found: dict[str, int] = json.loads(counts.read_bytes()) if counts.exists() else {}
    by_operation: dict[str, list[str]] = {}
    for label, count in sorted(found.items()):
        operation, _, status = label.rpartition(" ")
        by_operation.setdefault(operation, []).append(f"{status}: {count}")
    lines = [f"{operation:40} {', '.join(statuses)}" for operation, statuses in by_operation.items()]
    total = sum(found.values())
    return "\n".join([*lines, f"{total:,} requests in {seconds:.0f} s"]), total


def published(root: Path) -> list[str]:
    """Publish three versions: one to activate, the requested one, and one with a report but no model."""
    store = ModelStore(root)
    versions = []
    for seed in range(2):
        source = tiny_source(root.parent / f"source-{seed}", seed, prompts=PROMPTS)
        versions.append(publish(store, source, origin=f"tiny-{seed}").version)
    first = store.verify(versions[0])
    version = first.version[:-8] + "0" * 8

    def build(folder: Path) -> Manifest:
        (folder / REPORT_PAGE).mkdir()
        (folder / REPORT_PAGE / "report.md").write_text("# Refused\n", encoding="utf-8")
        (folder / REPORT_PAGE / "gains.svg").write_text("<svg/>", encoding="utf-8")
        (folder / REPORT).write_text('{"verdict": "refused"}', encoding="utf-8")
        return first.model_copy(update={"version": version, "fingerprint": "0" * 64, "files": {}})

    store.request(versions.pop(0))
    return [*versions, first.version, store.publish(build).version]


if __name__ == "__main__":
    sys.exit(main())
