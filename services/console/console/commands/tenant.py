"""`tokenfleet tenant`: who may use the fleet."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from console.commands.common import connected, state_dir_option
from console.operator import create_tenant, tenants
from tokenfleet.contracts.policy import Tenant
from tokenfleet.errors import PolicyError


@click.group()
def tenant() -> None:
    """Create and list tenants. Running services know of a change within a second."""


@tenant.command(epilog="Example: tokenfleet tenant create acme --tier priority --model llama-70b")
@click.argument("name")
@click.option(
    "--tier", type=click.Choice(["priority", "default", "flex"]), default="default", show_default=True
)
@click.option(
    "--model", "models", multiple=True, help="A model it may use; repeat for several. Default: all."
)
@click.option("--site", "sites", multiple=True, help="A site its requests may run on. Default: all.")
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), default=1024, show_default=True, help="Requests at once."
)
@state_dir_option
def create(
    name: str,
    tier: str,
    models: tuple[str, ...],
    sites: tuple[str, ...],
    max_concurrency: int,
    state_dir: Path,
) -> None:
    """Create a tenant and print its API key, which is shown only now."""
    fields: dict[str, Any] = {
        "tenant": name,
        "tier": tier,
        "models": models or None,
        "sites": sites or None,
        "max_concurrency": max_concurrency,
    }
    try:
        record = msgspec.convert(fields, Tenant)
    except msgspec.ValidationError as error:
        raise PolicyError(f"Tenant {name} would not be valid: {error}.") from error
    click.echo(asyncio.run(_create(record, state_dir)))


async def _create(record: Tenant, state_dir: Path) -> str:
    async with connected(state_dir) as bus:
        return await create_tenant(bus, record)


@tenant.command("list")
@state_dir_option
def list_tenants(state_dir: Path) -> None:
    """List the tenants and what they may do."""
    table = Table("tenant", "tier", "keys", "models", "sites", "at once")
    for record in asyncio.run(_tenants(state_dir)):
        models, sites = (
            ", ".join(names) if names is not None else "all" for names in (record.models, record.sites)
        )
        keys = str(len(record.key_hashes))
        table.add_row(record.tenant, record.tier, keys, models, sites, str(record.max_concurrency))
    Console().print(table)


async def _tenants(state_dir: Path) -> list[Tenant]:
    async with connected(state_dir) as bus:
        return await tenants(bus)
