"""docs/results.md: every run side by side, made from the runs' JSON and nothing else."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.results.findings import best_baseline, lags, ranked, summary
from lab.results.model import Run, title
from lab.results.part_tables import part_tables
from lab.results.tables import Cell, Row, Table, overall, per_class, per_length, predictions, share
from lab.results.writing import ABSENT, percent, whole

OPENING = """\
# Results

Every figure on this page is computed from the runs in `{runs}` by `tokenfleet lab report`, which writes this file:
do not edit it. Each scenario says which command makes its run again; `--json FILE` keeps it.

How to read it:

- Goodput is the output of requests that completed and met the objective of their class, per second. *Met* is their
  share, of all offered requests and of those admitted. *Refused* is the share of offered requests turned away.
- Figures are medians over the seeds, with the least and the greatest below. Bold is the best as written, the bound aside.
- The bound is not a policy: its TTFT is that of empty instances with an infinite shared cache, its goodput knows every
  length in advance. What was relaxed is said with each scenario.
- Times are virtual engine seconds. Prompt lengths are in tokens.
"""

PREDICTIONS = """\
- The error of a prediction is its absolute difference from what came, as a share of that: the median and the P90 of the
  requests, also without the first 500 to arrive. Calibrated, half of what came is at most the predicted P50.
"""

BATCH = """\
- The work of batch lines and of others is what they alone make the engines' iterations longer by, in engine seconds per
  second while there are lines enough to fill the pool. What others leave of the pool is what it does of the same lines by
  themselves (the scenario that runs them alone), less the others' work.
"""


def results(runs: Sequence[Run], folder: str) -> str:
    """The whole document. `folder` is where the runs are, as the reader should see it."""
    opening = OPENING.format(runs=folder)
    if any(result.prediction for run in runs for result in run.policies.values()):
        opening += PREDICTIONS
    if any(result.batch for run in runs for result in run.policies.values()):
        opening += BATCH
    parts = [opening, "## At a glance\n", _glance(runs)]
    for run in runs:
        parts += _scenario(run)
    parts += _policies(runs)
    return "\n".join(parts).rstrip() + "\n"


def write_results(runs: Sequence[Run], folder: str, path: Path) -> None:
    """Writes the document, creating the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results(runs, folder), encoding="utf-8")


def _glance(runs: Sequence[Run]) -> str:
    columns = (
        "scenario",
        "TokenFleet, tokens/s",
        "of the bound",
        "best baseline",
        "its goodput",
        "round robin's",
        "met of offered: TokenFleet",
        "best baseline",
        "round robin",
    )
    rows: list[list[str]] = []
    for run in runs:
        ours, rival, plain = run.ours, best_baseline(run), run.policies["round_robin"]
        theirs = run.policies[rival]
        rows.append(
            [
                f"[{run.scenario}](#{run.scenario})",
                whole(ours.goodput_tokens_per_s),
                percent(share(ours.goodput_tokens_per_s, run.bound.goodput_tokens_per_s)),
                title(rival),
                _change(ours.goodput_tokens_per_s, theirs.goodput_tokens_per_s),
                _change(ours.goodput_tokens_per_s, plain.goodput_tokens_per_s),
                percent(ours.attainment_offered),
                percent(theirs.attainment_offered),
                percent(plain.attainment_offered),
            ]
        )
    return _grid(columns, rows)


def _change(ours: float, theirs: float) -> str:
    """Their goodput, and TokenFleet's relative to it."""
    gain = f" (TokenFleet {ours / theirs - 1:+.1%})".replace("%", " %") if theirs else ""
    return f"{whole(theirs)}{gain}"


def _scenario(run: Run) -> list[str]:
    how = run.run
    requests = f", {how.requests:,} requests" if how.requests else ""
    parts = [f"## {run.scenario}\n"]
    if how.description:
        parts.append(f"{_text(how.description)}\n")
    parts += [
        f"{_text(how.trace)} at {how.speed:g}x{requests}, {how.seeds} seeds:\n",
        f"```sh\n{how.command}\n```\n",
        f"{summary(run)}\n",
        *_behind(run),
        _table(overall(run)),
        f"Bound: {_text(run.bound.relaxation) or 'the run does not say what was relaxed.'}\n",
    ]
    if how.assumptions:
        parts.append("Assumed in loading the trace: " + "; ".join(map(_text, how.assumptions)) + ".\n")
    tables = per_class(run)
    if run.input_lengths:
        tables.append(per_length(run))
    tables += part_tables(run)
    parts += [f"{table.heading}:\n\n{_table(table)}" for table in predictions(run)]
    for table in tables:
        parts.append(f"<details>\n<summary>{table.heading}</summary>\n\n{_table(table)}\n</details>\n")
    return parts


def _behind(run: Run) -> Iterable[str]:
    behind = lags(run)
    if not behind:
        return ["No baseline beats TokenFleet in any figure compared here.\n"]
    return ["Where a baseline beats TokenFleet:\n", *(f"- {lag}" for lag in behind), ""]


def _policies(runs: Sequence[Run]) -> list[str]:
    """Each policy's name on the command line and where it is published."""
    cited: dict[str, str] = {}
    for run in runs:
        for name in ranked(run):
            cited[name] = cited.get(name) or run.policies[name].citation
    rows = [[title(name), f"`{name}`", _text(citation) or ABSENT] for name, citation in sorted(cited.items())]
    return ["## Policies\n", _grid(("policy", "`--policy`", "published"), rows, numbers=False)]


def _table(table: Table) -> str:
    return _grid(("policy", *table.columns), [_row(row) for row in table.rows])


def _row(row: Row) -> list[str]:
    name = f"**{row.name}**" if row.ours else f"*{row.name}*" if row.bound else row.name
    return [name, *(_cell(cell) for cell in row.cells)]


def _cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    small = "<br>".join(part for part in (cell.range, cell.detail) if part)
    return f"{text}<br><sub>{small}</sub>" if small else text


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    rest = "---:" if numbers else "---"
    lines = [columns, ["---", *[rest] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _text(text: str) -> str:
    """Text of a run on one line, with what Markdown would take for a table or markup escaped."""
    line = " ".join(text.split())
    return (
        line.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )
