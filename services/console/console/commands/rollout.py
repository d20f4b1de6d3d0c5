"""`tokenfleet rollout`: which version of a model requests get that name none."""

from pathlib import Path

import click
import msgspec
from rich.table import Table

from console.commands.common import json_option, on_bus, print_json, state_dir_option
from console.rollouts import VersionShown, change_rollout, drained, shown, weighed
from tokenfleet.durations import duration_s
from tokenfleet.errors import PolicyError
from tokenfleet.terminal import output


@click.group()
def rollout() -> None:
    """Share requests out among the versions of a model. Running services follow within a second.

    Requests that name a version (MODEL@VERSION) get it, or a refusal that says why, unless it is drained.
    """


@rollout.command(
    epilog="""\b
Examples:
  tokenfleet rollout show
  tokenfleet rollout show llama-70b --json
"""
)
@click.argument("model", required=False)
@json_option
@state_dir_option
def show(model: str | None, as_json: bool, state_dir: Path) -> None:
    """Show the weights of each version, what is drained, and what FleetMind has rolled back."""
    _print(on_bus(state_dir, lambda bus: shown(bus, model)), as_json)


@rollout.command(
    "set",
    epilog="""\b
Examples:
  tokenfleet rollout set llama-70b 1=0.95 2=0.05    a canary: one request in twenty
  tokenfleet rollout set llama-70b 1=0 2=1          all to version 2; version 1 only for those pinned to it
  tokenfleet rollout set llama-70b 1=1 2=0          back again
""",
)
@click.argument("model")
@click.argument("weights", metavar="VERSION=WEIGHT...", nargs=-1, required=True)
@click.option("--warm-up", metavar="TIME", help="In which a new version works up to its weight, as in 60s.")
@click.option(
    "--roll-back/--no-roll-back",
    default=None,
    help="Stop using a version when far more of its requests fail than of the others'.",
)
@json_option
@state_dir_option
def set_(
    model: str,
    weights: tuple[str, ...],
    warm_up: str | None,
    roll_back: bool | None,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Give versions weights. Versions not named keep theirs; a version that never had one takes only what is pinned to it."""
    given = dict(map(_weight, weights))
    changes: dict[str, object] = {} if roll_back is None else {"roll_back": roll_back}
    if warm_up is not None:
        try:
            changes["warm_up_s"] = duration_s(warm_up)
        except ValueError as error:
            raise PolicyError(f"--warm-up: {error}.") from error

    on_bus(
        state_dir,
        lambda bus: change_rollout(bus, model, lambda before: weighed(before, given, **changes)),
    )
    _print(on_bus(state_dir, lambda bus: shown(bus, model)), as_json)


@rollout.command(epilog="Example: tokenfleet rollout drain llama-70b 1")
@click.argument("model")
@click.argument("version")
@state_dir_option
def drain(model: str, version: str, state_dir: Path) -> None:
    """Let a version take nothing new, not even what is pinned to it. What it has runs to its end.

    `rollout set` with a weight for it ends that.
    """
    on_bus(
        state_dir,
        lambda bus: change_rollout(bus, model, lambda before: drained(before, model, version)),
    )
    click.echo(f"{model}@{version} takes nothing new.")


@rollout.command(epilog="Example: tokenfleet rollout end llama-70b")
@click.argument("model")
@state_dir_option
def end(model: str, state_dir: Path) -> None:
    """Forget a model's weights: any version that is ready may serve requests that name none."""
    on_bus(state_dir, lambda bus: change_rollout(bus, model, lambda _: None))
    click.echo(f"Any version of {model} may be used.")


def _weight(text: str) -> tuple[str, float]:
    version, separator, weight = text.rpartition("=")
    try:
        value = float(weight)
    except ValueError:
        value = -1.0
    if not separator or not version or not 0 <= value < float("inf"):
        raise PolicyError(f"{text!r} is not VERSION=WEIGHT with a weight of 0 or more, as in 2=0.05.")
    return version, value


def _print(versions: list[VersionShown], as_json: bool) -> None:
    if as_json:
        print_json([msgspec.to_builtins(one) for one in versions])
        return
    if not versions:
        click.echo("No rollout: any version that is ready may serve requests that name none.")
        return
    table = Table("model", "version", "weight", "share", "state")
    for one in versions:
        back = "; ".join(f"rolled back at {site}: {why}" for site, why in sorted(one.rolled_back.items()))
        state = "drained" if one.drained else back or ("in use" if one.weight else "only where pinned")
        table.add_row(one.model, one.version, f"{one.weight:g}", f"{one.share:.0%}", state)
    output().print(table)
