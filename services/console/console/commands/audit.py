"""`tokenfleet audit`: a group whose subcommands other packages bring."""

import click

from console.lazy_group import LazyGroup

GROUP = "tokenfleet.audit_commands"


@click.command(
    "audit",
    cls=LazyGroup,
    entry_point_group=GROUP,
    epilog="""\b
Examples:
  tokenfleet audit verify                      is the ledger what the events say
  tokenfleet audit trace REQUEST_ID            one request's whole story
  tokenfleet audit export --out DIR --from 1d  keep the events of a day in files
""",
)
def audit() -> None:
    """Check the ledger against the recorded events, and keep those for later."""
