"""The comparison as tables."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.table import Table

from lab.planning.figures import Figures
from lab.planning.forecast_errors import ForecastErrors
from lab.planning.simulate import STATIC
from lab.sim.tables import ABSENT


class Column(NamedTuple):
    heading: str
    value: Callable[[Figures], float | None]
    written: str


COLUMNS = (
    Column("replica-h", lambda one: one.replica_hours, "{:,.0f}"),
    Column("GPU-h", lambda one: one.gpu_hours, "{:,.0f}"),
    Column("late", lambda one: one.late, "{:.2%}"),
    Column("worst model", lambda one: one.late_of_worst_model, "{:.2%}"),
    Column("worst entry", lambda one: one.late_of_worst_entry, "{:.2%}"),
    Column("in bursts", lambda one: one.late_in_bursts, "{:.1%}"),
    Column("outside", lambda one: one.late_outside_bursts, "{:.2%}"),
    Column("away", lambda one: one.away, "{:.1%}"),
    Column("begun/day", lambda one: one.begun_per_day, "{:,.0f}"),
    Column("stopped/day", lambda one: one.stopped_per_day, "{:,.0f}"),
)


def comparison(policies: Mapping[str, Figures], title: str) -> Table:
    """A row for each policy."""
    table = Table(
        title=title,
        title_justify="left",
        caption="late: share of the work asked for that was not borne within a step after its own; in bursts: of the "
        "work of a model at an entry while it has one",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for heading in (*(column.heading for column in COLUMNS), "of static"):
        table.add_column(heading, justify="right")
    static = policies.get(STATIC)
    for name, one in policies.items():
        of_static = _written(one.gpu_hours / static.gpu_hours if static else None, "{:.0%}")
        table.add_row(name, *(_written(column.value(one), column.written) for column in COLUMNS), of_static)
    return table


def forecast_table(rows: Mapping[str, ForecastErrors], title: str) -> Table:
    """A row for each horizon."""
    table = Table(
        title=title,
        title_justify="left",
        caption="off: weighted absolute percentage error; above upper: a tenth, if the upper bound is calibrated",
        caption_justify="left",
    )
    for heading in ("ahead", "judged", "off", "as now off", "above upper"):
        table.add_column(heading, justify="left" if heading == "ahead" else "right")
    for name, errors in rows.items():
        shares = (errors.error, errors.naive_error, errors.above_upper)
        table.add_row(name, f"{errors.judged:,}", *(_written(share, "{:.1%}") for share in shares))
    return table


def _written(value: float | None, written: str) -> str:
    return ABSENT if value is None else written.format(value)
