"""Which sites FleetMind weighed, and why the request went to none of the others."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.explain.cells import ABSENT, CHOSEN, count, new_table, seconds
from console.explain.explanation import Explanation
from tokenfleet.contracts.requests import Placed, Weighed


def site_choices(explanation: Explanation) -> Iterator[RenderableType]:
    """A table for each placement that had a choice, or was refused."""
    for placed in explanation.placements:
        if len(placed.weighed) > 1:
            yield Text()
            yield _sites(
                f"Attempt {placed.attempt}: sites, cheapest first; {placed.reason}", placed.weighed, placed
            )
            yield from _rest(placed.weighed, placed.out)
    refused = explanation.refused
    if refused is not None and refused.weighed:
        yield Text()
        yield _sites(f"Attempt {refused.attempt}: no site can take it", refused.weighed, None)
        yield from _rest(refused.weighed, refused.out)


def _sites(title: str, weighed: Sequence[Weighed], placed: Placed | None) -> Table:
    table = new_table(title)
    for heading in ("", "site", "pool"):
        table.add_column(heading)
    for heading in ("cost s", "TTFT s", "way s", "own prefill s", "reused"):
        table.add_column(heading, justify="right")
    table.add_column("why not")
    for one in weighed:
        chosen = placed is not None and (one.site, one.pool) == (placed.site, placed.pool)
        table.add_row(
            CHOSEN if chosen else "",
            one.site,
            one.pool,
            seconds(one.cost_s),
            seconds(one.predicted_ttft_s),
            seconds(one.way_s),
            seconds(one.work_s),
            ABSENT if one.cost_s is None else count(one.reused_tokens),
            one.out or ("" if chosen else "others as good"),
            style="bold green" if chosen else "",
        )
    return table


def _rest(weighed: Sequence[Weighed], out: dict[str, int]) -> Iterator[Text]:
    """What a table leaves out of a large fleet."""
    left = dict(out)
    for one in weighed:
        if one.out is not None:
            left[one.out] = left.get(one.out, 0) - 1
    told = [f"{pools:,} {reason}" for reason, pools in sorted(left.items()) if pools > 0]
    if told:
        yield Text(f"Besides: {', '.join(told)}.")
