"""Every command in the README and in docs/operations.md is a command that works."""

import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from running_stack import RunningStack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/operations.md"]
RUN_BY_OTHER_TESTS = ("up", "run", "demo", "links", "plan")
"""They need several sites, stay up or take long: the stack under test is an `up`, fault tests `run`, and the demo is two replays. There is
a plan only after two minutes of demand: tests/integration/test_planning.py has some of before. Real
engines are started, with the flags that the documents show, by tests/engine."""


def commands() -> list[str]:
    """The lines of all shell blocks, without comments."""
    found = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text()
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.split("  #")[0].strip() for line in lines if line.strip() and line[0] != "#"]
    return list(dict.fromkeys(found))


def parts(command: str, program: str) -> list[str] | None:
    words = shlex.split(command)
    return words[1:] if words[0] == program else None


def send_request(stack: RunningStack, request_id: str) -> None:
    """What a client would have done before somebody asks about its request."""
    answer = httpx.post(
        f"{stack.api_url}/v1/completions",
        headers={"Authorization": f"Bearer {stack.api_key}", "x-request-id": request_id},
        json={"model": "llama-70b", "prompt": "hello", "max_tokens": 4},
        timeout=60.0,
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_targets_exist(command: str):
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = [word for word in shlex.split(command)[1:] if "=" not in word]
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, flags=re.MULTILINE), command


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("tokenfleet ")])
def test_tokenfleet_commands_work(running_stack: RunningStack, command: str, monkeypatch: pytest.MonkeyPatch):
    arguments = parts(command, "tokenfleet")
    assert arguments
    if arguments[0] in RUN_BY_OTHER_TESTS:
        result = running_stack.command(*arguments, "--help")
    else:
        running_stack.wait_ready(4)
        monkeypatch.chdir(REPOSITORY)
        if any(word.startswith("../shared/") and not Path(word).exists() for word in arguments):
            pytest.skip("the traces are not beside this checkout")
        if arguments[0] == "explain":
            send_request(running_stack, arguments[1])
        result = running_stack.command(*arguments, timeout_s=150.0)
        for word in arguments:
            if word.endswith(".json"):  # what the example writes
                Path(word).unlink(missing_ok=True)
    assert result.returncode == 0, result.stdout + result.stderr
    if arguments[:2] == ["policy", "set"]:
        running_stack.command("policy", "set", "routing=predicted", "admission=true")


def test_the_batch_of_the_document_runs_by_its_curl_commands(running_stack: RunningStack, tmp_path: Path):
    upload, create, show, read, cancel = [command for command in commands() if command.startswith("curl ")]
    running_stack.wait_ready(4)
    lines = re.search(r"```jsonl\n(.*?)```", (REPOSITORY / "docs/operations.md").read_text(), flags=re.DOTALL)
    assert lines is not None
    (tmp_path / "requests.jsonl").write_text(lines[1])

    def curl(command: str, **ids: str) -> Any:
        for name, value in ids.items():
            command = command.replace(name, value)
        command = command.replace("http://127.0.0.1:8080", running_stack.api_url)
        command = command.replace("$TOKENFLEET_API_KEY", running_stack.api_key)
        words = [*shlex.split(command), "--silent", "--show-error"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    # A stack is up before the accountant has brought the database up to date.
    uploaded = until(lambda: [answer for answer in curl(upload) if "id" in answer], timeout_s=30, every_s=0.5)
    file_id = uploaded[0]["id"]
    (batch,) = curl(create, FILE_ID=file_id)
    deadline = time.monotonic() + 60
    while batch["status"] != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
        (batch,) = curl(show, BATCH_ID=batch["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    answers = curl(read, OUTPUT_FILE_ID=batch["output_file_id"])
    assert [answer["custom_id"] for answer in answers] == ["first", "second"]
    (another,) = curl(create, FILE_ID=file_id)
    (cancelled,) = curl(cancel, BATCH_ID=another["id"])
    assert cancelled["status"] in ("cancelling", "cancelled")


def test_there_are_no_other_kinds_of_commands_that_nothing_checks():
    known = ("make ", "tokenfleet ", "docker compose ", "curl ", "git clone ", "cd ", "vllm serve ")
    unknown = [command for command in commands() if not command.startswith(known)]
    assert unknown == []
