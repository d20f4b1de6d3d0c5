"""A report as CSV: a line for all requests together and one for each group, a column for every figure."""

import csv
from collections.abc import Mapping
from typing import IO, Any, get_args

import msgspec

from goodput_accountant.policy.accounting import Term
from goodput_accountant.policy.totals import CAUSES
from tokenfleet.contracts.ledger import Report, Summary, WasteFigures

WASTE = tuple(field.name for field in msgspec.structs.fields(WasteFigures))


def write_csv(report: Report, file: IO[str]) -> None:
    """Write it. In the first line `by` is `total` and `group` is empty; what is not known is empty, too."""
    lines = [_line("total", "", report.total)]
    lines += [_line(report.group_by, name, summary) for name, summary in report.groups.items()]
    writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def _line(by: str, group: str, summary: Summary) -> dict[str, Any]:
    """The same columns for every summary, whatever there was."""
    figures: dict[str, Any] = {"by": by, "group": group}
    for name, figure in msgspec.to_builtins(summary).items():
        if name == "waste":
            waste = (
                (f"{cause}_{each}", figure.get(cause, {}).get(each, 0)) for cause in CAUSES for each in WASTE
            )
            figures |= {f"waste_{each}": value for each, value in waste}
        elif name == "missed_terms":
            figures |= {f"missed_{term}": figure.get(term, 0) for term in get_args(Term)}
        elif isinstance(figure, Mapping):
            figures |= {f"{name}_{part}": value for part, value in figure.items()}
        elif isinstance(figure, bool):
            figures[name] = str(figure).lower()
        else:
            figures[name] = figure
    return figures
