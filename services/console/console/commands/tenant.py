"""`tokenfleet tenant`: who may use the fleet, with which share of it, by which keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import msgspec
from rich.table import Table

from console.assignments import complete, settings_of
from console.commands.common import json_option, on_bus, print_json, shown, state_dir_option
from console.operator import (
    FIXED,
    changed_tenant,
    create_tenant,
    delete_tenant,
    find_tenant,
    key_id,
    live_policy,
    revoke_key,
    rotate_key,
    set_tenant,
    tenants,
)
from tokenfleet.bus import Bus
from tokenfleet.contracts.policy import Tenant, Tier, WhenLate
from tokenfleet.errors import PolicyError
from tokenfleet.terminal import output

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = (
    click.option(
        "--tier", type=click.Choice(get_args(Tier)), help="The highest service_tier of its requests."
    ),
    click.option("--weight", type=float, help="Its share against other tenants' weights."),
    click.option("--model", "models", multiple=True, help="A model it may use; repeat for several."),
    click.option(
        "--site", "sites", multiple=True, help="A site its requests may run on; repeat for several."
    ),
    click.option(
        "--region", "regions", multiple=True, help="A region its requests may run in; repeat for several."
    ),
    click.option("--tokens-per-minute", type=int, help="Input and output tokens together."),
    click.option("--max-concurrency", type=int, help="Requests at once."),
    click.option(
        "--when-late",
        type=click.Choice(get_args(WhenLate)),
        help="What becomes of a request that is predicted to miss its objective.",
    ),
    click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1),
)


def settings_options(command: F) -> F:
    """What a tenant may be given, as options and as assignments."""
    for option in reversed(SETTINGS):
        command = option(command)
    return command


def _assignments(assignments: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    return [*(f"{name}={msgspec.json.encode(value).decode()}" for name, value in given.items()), *assignments]


@click.group()
def tenant() -> None:
    """Create, change and delete tenants and their keys. Running services follow within a second."""


@tenant.command(
    epilog="""\b
Examples:
  tokenfleet tenant create acme --tier priority --weight 2 --model llama-70b
  tokenfleet tenant create acme --tokens-per-minute 600000 objectives.interactive.ttft_s=2
"""
)
@click.argument("name")
@settings_options
@state_dir_option
def create(name: str, assignments: tuple[str, ...], state_dir: Path, **options: Any) -> None:
    """Create a tenant and print its API key, which is shown only now.

    What is not given is as by default: tier default, weight 1, all models and sites, no token limit, 1024 requests at
    once, and the policy's objectives. KEY=VALUE takes nested keys as `tokenfleet policy set` does.
    """
    if not name:
        raise PolicyError("A tenant needs a name that is not empty.")
    changes = _assignments(assignments, options)

    async def store(bus: Bus) -> str:
        return await create_tenant(bus, changed_tenant(Tenant(tenant=name), changes, await live_policy(bus)))

    click.echo(on_bus(state_dir, store))


@tenant.command("list", epilog="Example: tokenfleet tenant list --json")
@json_option
@state_dir_option
def list_tenants(as_json: bool, state_dir: Path) -> None:
    """List the tenants and what they may do."""
    found = on_bus(state_dir, tenants)
    if as_json:
        print_json([_public(record) for record in found])
        return
    table = Table("tenant", "tier", "weight", "keys", "models", "sites", "at once", "tokens/min", "when late")
    for record in found:
        models, sites = (
            ", ".join(names) if names is not None else "all" for names in (record.models, record.sites)
        )
        rate = f"{record.tokens_per_minute:,}" if record.tokens_per_minute else "no limit"
        row = (
            record.tier,
            f"{record.weight:g}",
            len(record.key_hashes),
            models,
            sites,
            record.max_concurrency,
        )
        table.add_row(record.tenant, *map(str, row), rate, record.when_late or "as the policy")
    output().print(table)


@tenant.command(epilog="Example: tokenfleet tenant show acme")
@click.argument("name")
@json_option
@state_dir_option
def show(name: str, as_json: bool, state_dir: Path) -> None:
    """Show a tenant's settings and the ids of its keys."""
    _print(on_bus(state_dir, lambda bus: find_tenant(bus, name)), as_json)


@tenant.command(
    "set",
    epilog="""\b
Examples:
  tokenfleet tenant set acme --weight 2 --when-late degrade
  tokenfleet tenant set acme tokens_per_minute=null objectives.interactive.ttft_s=2
""",
)
@click.argument("name")
@settings_options
@json_option
@state_dir_option
def set_(name: str, assignments: tuple[str, ...], as_json: bool, state_dir: Path, **options: Any) -> None:
    """Change a tenant's settings; all of them or, when one is wrong, none. null lifts one."""
    changes = _assignments(assignments, options)
    if not changes:
        raise click.UsageError("Nothing to change: give an option or KEY=VALUE.")
    _print(on_bus(state_dir, lambda bus: set_tenant(bus, name, changes)), as_json)


@tenant.command(
    "rotate-key",
    epilog="""\b
Examples:
  tokenfleet tenant rotate-key acme             the old keys end at once
  tokenfleet tenant rotate-key acme --keep-old  both work until `tokenfleet tenant revoke-key acme ID`
""",
)
@click.argument("name")
@click.option("--keep-old", is_flag=True, help="Let the keys it has work on, until each is revoked.")
@state_dir_option
def rotate(name: str, keep_old: bool, state_dir: Path) -> None:
    """Give a tenant a new API key and print it; it is shown only now."""
    click.echo(on_bus(state_dir, lambda bus: rotate_key(bus, name, keep_old=keep_old)))


@tenant.command("revoke-key", epilog="Example: tokenfleet tenant revoke-key acme 3f2a91c07be4")
@click.argument("name")
@click.argument("key", metavar="ID")
@state_dir_option
def revoke(name: str, key: str, state_dir: Path) -> None:
    """End one key of a tenant. ID is as `tokenfleet tenant show` has it, or the key itself."""
    left = len(on_bus(state_dir, lambda bus: revoke_key(bus, name, key)).key_hashes)
    click.echo(f"Revoked. Tenant {name} has {left} key{'' if left == 1 else 's'} left.")


@tenant.command(epilog="Example: tokenfleet tenant delete acme --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_dir_option
def delete(name: str, yes: bool, state_dir: Path) -> None:
    """Delete a tenant and its keys. What it has running runs to its end; the ledger keeps its past."""
    on_bus(state_dir, lambda bus: find_tenant(bus, name))
    if not yes:
        click.confirm(f"Delete tenant {name} and its keys?", abort=True)
    on_bus(state_dir, lambda bus: delete_tenant(bus, name))
    click.echo(f"Tenant {name} is deleted.")


def _public(record: Tenant) -> dict[str, Any]:
    """What may be shown of a tenant: its settings, and its keys only by id."""
    settings = {name: value for name, value in complete(record).items() if name not in FIXED}
    return {"tenant": record.tenant, "keys": [key_id(each) for each in record.key_hashes], **settings}


def _print(record: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(_public(record))
        return
    table = Table("setting", "value")
    table.add_row("tenant", record.tenant)
    table.add_row("keys", ", ".join(map(key_id, record.key_hashes)) or "none")
    for key, value in settings_of(record).items():
        if key not in FIXED:
            table.add_row(key, shown(value))
    output().print(table)
