"""`tokenfleet ledger`: questions to the ledger, asked over NATS."""

import click

from goodput_accountant.dead_letters_command import dead_letters
from goodput_accountant.reporting.export_command import export_command
from goodput_accountant.reporting.report_command import report, top
from goodput_accountant.retention_command import retention


@click.group()
def ledger() -> None:
    """What requests were worth: reports from the ledger, and its rows."""


for _command in (report, top, export_command, retention, dead_letters):
    ledger.add_command(_command)
