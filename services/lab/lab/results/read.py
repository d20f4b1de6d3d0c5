"""Reads the JSON of lab runs and says plainly what is wrong with a file that is not one."""

from pathlib import Path

import msgspec

from lab.results.errors import RunFileError
from lab.results.model import OURS, Run
from tokenfleet.errors import TokenFleetError

REQUIRED = (OURS, "round_robin", "least_requests")
"""Without these there is nothing to compare with."""


def read_run(path: Path) -> Run:
    """One run.

    Raises RunFileError when the file cannot be read, is not a run's JSON, or misses a policy that every
    comparison needs.
    """
    try:
        run = msgspec.json.decode(path.read_bytes(), type=Run)
    except OSError as error:
        raise RunFileError(path, f"cannot be read ({error.strerror})", "Give a file that exists.") from error
    except msgspec.MsgspecError as error:
        raise RunFileError(path, f"not the JSON of a lab run: {error}", _remedy("SCENARIO", path)) from error
    missing = [name for name in REQUIRED if name not in run.policies]
    if missing:
        raise RunFileError(path, f"has no policy {', '.join(missing)}", _remedy(run.scenario, path))
    return run


def read_runs(folder: Path) -> list[Run]:
    """All runs of a folder, by name, fit for the docs: several seeds each, and each scenario once.

    Raises RunFileError naming every file that is not, or when there is none.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise RunFileError(folder, "holds no runs (*.json)", _remedy("SCENARIO", folder / "SCENARIO.json"))
    runs: dict[str, Run] = {}
    problems: list[str] = []
    for path in paths:
        try:
            run = read_run(path)
            _fit_for_docs(path, run, runs)
        except RunFileError as error:
            problems.append(str(error))
        else:
            runs[run.scenario] = run
    if problems:
        raise TokenFleetError("\n".join(problems))
    return list(runs.values())


def _fit_for_docs(path: Path, run: Run, others: dict[str, Run]) -> None:
    if run.run.seeds < 2:
        raise RunFileError(path, "one seed only, which shows no spread", _remedy(run.scenario, path))
    without = [name for name, result in run.policies.items() if result.min is None or result.max is None]
    if without:
        raise RunFileError(path, f"no min and max for {', '.join(without)}", _remedy(run.scenario, path))
    if run.scenario in others:
        raise RunFileError(path, f"a second run of {run.scenario}", "Keep one file per scenario.")


def _remedy(scenario: str, path: Path) -> str:
    return f"Make it with: tokenfleet lab run {scenario} --seeds 5 --json {path}"
