"""`tokenfleet ledger`: questions to the ledger, asked over NATS."""

import click

from goodput_accountant.reporting.export_command import export_command
from goodput_accountant.reporting.report_command import report, top


@click.group()
def ledger() -> None:
    """What requests were worth: reports from the ledger, and its rows."""


ledger.add_command(report)
ledger.add_command(top)
ledger.add_command(export_command)
