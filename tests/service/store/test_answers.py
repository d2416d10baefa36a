"""Answers that are built or sent at the same time share one memory limit."""

import socket
from pathlib import Path

import pytest

from service.errors import Overloaded
from service.store.scheduling import Answers, Share
from tests.service.placed import serving
from tests.waiting import until

MIB = 1 << 20


def test_answers_have_room_for_all_of_them_together_and_one_alone_has_it_always() -> None:
    answers = Answers(1)
    one, other = Share(answers), Share(answers)
    one.add(3 * MIB)
    with pytest.raises(Overloaded, match="SIMILE_MAX_ANSWERS_MB"):
        other.add(1)
    one.let_go()
    other.add(MIB)
    with pytest.raises(Overloaded):
        other.add(1)


def test_what_a_request_reads_after_its_end_counts_for_nobody() -> None:
    answers = Answers(1)
    gone = Share(answers)
    gone.let_go()
    gone.add(MIB)
    Share(answers).add(MIB)


def test_an_answer_that_is_being_sent_keeps_its_room_until_it_is_read_or_its_client_leaves(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with serving(tmp_path, tiny_models_dir, max_answers_mb=25) as place:
        for first in range(0, 320, 80):  # 20 million bytes in all, more than a socket buffers
            documents = [
                {"id": f"{first + at}", "text": "red", "metadata": {"much": "x" * 62_000}} for at in range(80)
            ]
            stored = place.client.post("/documents", json={"documents": documents})
            assert stored.status_code == 200, stored.text
        paths = ("/documents?limit=1000", "/search?q=red&k=1000")
        for path in paths:
            with socket.create_connection(("127.0.0.1", place.port)) as slow:
                slow.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert slow.recv(100).startswith(b"HTTP/1.1 200")
                for other in paths:
                    refused = place.client.get(other)
                    assert refused.status_code == 429, refused.text[:200]
                    assert "SIMILE_MAX_ANSWERS_MB" in refused.json()["error"]
                assert place.client.get("/documents/1").status_code == 200
            until(lambda: place.client.get(path).status_code == 200)  # noqa: B023
