"""`.ci/run` is `make test` in the repository, from wherever it is called."""

import os
import subprocess
from pathlib import Path

from unit.infra.deployment import REPOSITORY


def test_it_runs_make_test_at_the_top_of_the_repository_and_ends_as_it_ends(tmp_path: Path):
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$PWD: make $*"\nexit 3\n')
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    ended = subprocess.run(
        [REPOSITORY / ".ci" / "run"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert ended.stdout == f"{REPOSITORY}: make test\n"
    assert ended.returncode == 3
