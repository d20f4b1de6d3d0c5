"""Every command in the README and in docs/operations.md is a command that works."""

import re
import shlex
from pathlib import Path

import httpx2 as httpx
import pytest
from running_stack import RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/operations.md"]
RUN_BY_OTHER_TESTS = ("up", "run", "demo")
"""They stay up or take long: the stack under test is an `up`, fault tests `run`, and the demo is two replays. Real
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


def test_there_are_no_other_kinds_of_commands_that_nothing_checks():
    known = ("make ", "tokenfleet ", "docker compose ", "curl ", "git clone ", "cd ", "vllm serve ")
    unknown = [command for command in commands() if not command.startswith(known)]
    assert unknown == []
