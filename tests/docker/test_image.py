"""The service's image by itself: small, unprivileged, and complete without a network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest

from tests.docker.stack import TAG, docker
from tests.service.process import free_port

LARGEST_MB = 750


@pytest.fixture(scope="module")
def configured(service_image: str) -> Any:
    [found] = json.loads(docker("image", "inspect", service_image))
    return found


@pytest.fixture(scope="module")
def offline(service_image: str) -> Iterator[str]:
    """The name of a running service container without network, write access to its root, or capabilities."""
    hardened = ["--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    more = ["--tmpfs=/tmp", "--env=SIMILE_INSECURE=1", "--env=SIMILE_WORKERS=1"]
    name = f"simile-offline-{free_port()}"
    docker("run", "--detach", "--name", name, *hardened, *more, service_image)
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


def requested(container: str, path: str) -> Any:
    """Returns the JSON answer of the service, requested inside the container, which has no network."""
    read = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000{path}').read().decode())"
    return json.loads(docker("exec", container, "python", "-c", read))


def test_the_image_with_its_model_is_under_750_megabytes(configured: Any) -> None:
    assert configured["Size"] < LARGEST_MB * 10**6


def test_nobody_in_it_is_root_and_its_commands_are_run_without_a_shell(configured: Any) -> None:
    found = configured["Config"]
    assert found["User"] == "10001:10001"
    assert found["Entrypoint"] == ["tini", "--", "python", "-m", "service"]
    assert found["Cmd"] == ["serve"]
    assert found["Healthcheck"]["Test"][:2] == ["CMD", "python"]


def test_it_says_what_it_is(configured: Any) -> None:
    labels = configured["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "Simile"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] == version("simile-search")


def test_it_has_no_torch_and_no_compiler(service_image: str) -> None:
    look = (
        "import importlib.util as u, shutil\n"
        "print([name for name in ('torch', 'transformers', 'scipy', 'openvino') if u.find_spec(name)])\n"
        "print(shutil.which('gcc'), shutil.which('git'))"
    )
    found = docker("run", "--rm", "--entrypoint", "python", service_image, "-c", look)
    assert found == "[]\nNone None\n"


def test_on_every_address_without_keys_it_refuses_to_start_and_says_what_to_do(service_image: str) -> None:
    said = docker("run", "--rm", service_image, "check", status=1)
    assert said == ""
    read = ["run", "--rm", "--entrypoint", "sh", service_image, "-c", "python -m service 2>&1 | cat"]
    assert "SIMILE_INSECURE=1 if a proxy rejects unknown clients" in docker(*read)


def test_without_a_network_it_serves_its_model_from_the_seed(offline: str) -> None:
    docker("exec", offline, "sh", "-c", "until python -I -S /simile/bin/healthcheck.py; do sleep .2; done")
    [seed] = docker("exec", offline, "ls", "/simile/share/simile/seed").split()
    info = requested(offline, "/info")
    assert info["model_version"] == seed
    assert info["fingerprint"] == "c81e5503b62cfb47b7555e76575e1b59234617a42aa907c31228bc55abac6b01"
    assert requested(offline, "/ready") == {"status": "ready"}


def test_its_first_process_is_an_init_and_its_service_cannot_write_outside_its_volumes(offline: str) -> None:
    assert docker("exec", offline, "cat", "/proc/1/comm") == "tini\n"
    write = "for f in /simile /etc /usr /; do touch $f/x 2>/dev/null && echo $f; done; "
    write += "touch /data/x /models/x /tmp/x && id -u"
    assert docker("exec", offline, "sh", "-c", write) == "10001\n"
    assert docker("diff", offline) == "", "something was written beside the volumes"


def test_health_is_red_when_the_service_is(offline: str) -> None:
    """The health check of the image fails if nothing answers at its port."""
    check = ["exec", "--env=SIMILE_PORT=1", offline, "python", "-I", "-S", "/simile/bin/healthcheck.py"]
    assert "refused" in docker(*check, status=1)


SICK = """
import http.server, os, subprocess, sys, threading
class Sick(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b"its batches fail")
server = http.server.HTTPServer(("127.0.0.1", 0), Sick)
threading.Thread(target=server.serve_forever, daemon=True).start()
check = [sys.executable, "-I", "-S", "/simile/bin/healthcheck.py"]
sys.exit(subprocess.run(check, env=os.environ | {"SIMILE_PORT": str(server.server_port)}).returncode)
"""


def test_health_is_red_when_the_service_answers_that_it_is_ill(offline: str) -> None:
    assert "503 its batches fail" in docker("exec", offline, "python", "-c", SICK, status=1)


def test_the_gpu_image_refuses_to_start_without_a_gpu(engine: None) -> None:
    """Runs only if the image was built before, with docker/gpu.yml. It has 4.6 GB."""
    image = f"simile-service-gpu:{TAG}"
    if docker("image", "ls", "--quiet", image) == "":
        pytest.skip(f"needs {image}, which is too large to be built for one test")
    said = docker("run", "--rm", "--env=SIMILE_INSECURE=1", image, status=os.EX_CONFIG, both=True)
    assert "SIMILE_DEVICE" in said
