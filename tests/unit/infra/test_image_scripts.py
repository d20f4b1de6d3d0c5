"""What runs inside an image: the start of its service and its health check; and the build's one shared version."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from unit.infra.deployment import DOCKERFILE, INFRA, REPOSITORY, SERVICES


def run_script(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TOKENFLEET_")}
    command = [sys.executable, str(INFRA / "docker" / name)]
    return subprocess.run(
        command, env={**environment, **variables}, capture_output=True, text=True, timeout=60
    )


@contextmanager
def health_answering(status: int) -> Iterator[str]:
    """A server whose /health answers so, and nothing else does; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"nats": "somewhere"}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield str(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_service_that_answers_200_is_healthy_whatever_proxy_is_set():
    with health_answering(200) as port:
        checked = run_script("healthcheck.py", HEALTH_PORT=port, http_proxy="http://127.0.0.1:9")

    assert checked.returncode == 0


def test_a_service_that_says_it_is_not_well_is_unhealthy_and_its_words_are_kept():
    with health_answering(503) as port:
        checked = run_script("healthcheck.py", HEALTH_PORT=port)

    assert checked.returncode == 1
    assert "somewhere" in checked.stdout
    assert "503" in checked.stderr


def test_a_service_that_does_not_answer_is_unhealthy():
    with health_answering(200) as port:
        pass
    checked = run_script("healthcheck.py", HEALTH_PORT=port)

    assert checked.returncode == 1
    assert "does not answer" in checked.stderr


def test_the_image_runs_the_service_it_is_named_for():
    # It has no database to use, which is the accountant's own first complaint and nobody else's.
    started = run_script("run_service.py", SERVICE="goodput-accountant")

    assert started.returncode == 1
    assert "TOKENFLEET_POSTGRES_DSN" in started.stderr


@pytest.mark.parametrize("name", ["", "no-such-service"])
def test_an_image_without_the_service_says_which_it_has(name: str):
    started = run_script("run_service.py", SERVICE=name)

    assert started.returncode == 2
    assert f"no service {name!r}" in started.stderr
    assert ", ".join(SERVICES) in started.stderr


def test_images_are_built_with_the_uv_that_the_makefile_uses():
    makefile = (REPOSITORY / "Makefile").read_text()

    assert re.findall(r"UV_VERSION=(\S+)", DOCKERFILE) == re.findall(r"^UV_VERSION := (\S+)", makefile, re.M)


def test_the_build_context_holds_all_that_the_dockerfile_copies():
    allowed = {
        line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (REPOSITORY / source).exists()
            assert any(source == name or source.startswith(f"{name}/") for name in allowed), source
