"""`tokenfleet links`: the links between the sites of a stack on this machine, shown and changed."""

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from console.commands.common import json_option, print_json, state_dir_option
from console.sites.client import change_links, read_links
from console.sites.links import LinkReport
from console.sites.options import parse_bandwidth, parse_round_trip
from console.state import StateFolder
from tokenfleet.errors import ConfigurationError
from tokenfleet.terminal import output


@click.command(
    epilog="""\b
Examples:
  tokenfleet links
  tokenfleet links B --cut                     site B alone, until: tokenfleet links B --joined
  tokenfleet links B-C --round-trip 80ms --bandwidth 100mbit
"""
)
@click.argument("which", required=False, metavar="[SITE|SITE-SITE]")
@click.option("--cut", "state", flag_value="cut", help="Reset its connections and take no more.")
@click.option(
    "--silent", "state", flag_value="silent", help="Deliver nothing and reset nothing, as a network fails."
)
@click.option("--joined", "state", flag_value="joined", help="End either.")
@click.option("--round-trip", metavar="TIME", help="As 80ms, from now on.")
@click.option("--bandwidth", metavar="RATE", help="As 100mbit, in each direction; none: no limit.")
@json_option
@state_dir_option
def links(
    which: str | None,
    state: str | None,
    round_trip: str | None,
    bandwidth: str | None,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Show the links between the sites of `tokenfleet up --sites`, or change those of a site or of one pair."""
    url = StateFolder(state_dir).running().links_url
    if url is None:
        raise ConfigurationError(
            "The running stack has one site only. Start several with `tokenfleet up --sites 3`."
        )
    change: dict[str, Any] = {}
    if state is not None:
        change["state"] = state
    if round_trip is not None:
        change["round_trip_s"] = parse_round_trip(round_trip)
    if bandwidth is not None:
        change["bytes_per_s"] = None if bandwidth == "none" else parse_bandwidth(bandwidth)
    if change and which is None:
        raise click.UsageError("Name the site or the link to change, as in B or B-C.")
    reports = change_links(url, which, change) if which else read_links(url)
    if as_json:
        print_json([msgspec.to_builtins(report) for report in reports])
    else:
        output().print(_table(reports))


def _table(reports: list[LinkReport]) -> Table:
    table = Table("link", "state", "round trip", "bandwidth", "connections", "relayed")
    for report in reports:
        rate = f"{report.bytes_per_s * 8 / 1e6:g} Mbit/s" if report.bytes_per_s else "no limit"
        table.add_row(
            report.link,
            report.state,
            f"{report.round_trip_s * 1e3:g} ms",
            rate,
            str(report.connections),
            f"{report.bytes_relayed / 1e6:.1f} MB",
        )
    return table
