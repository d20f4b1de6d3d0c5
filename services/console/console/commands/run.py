"""`tokenfleet run SERVICE`: one service in the foreground."""

from pathlib import Path

import click

from console.run import join_running_stack, known_services, run_service


@click.command(
    epilog="""\b
Examples:
  tokenfleet run slomax                          a second SLOMax for the stack that runs here
  TOKENFLEET_ENGINE_READY_FILE=.tokenfleet/engines/node-1/extra.json \\
    tokenfleet run emulated-engine               one more engine; it leaves when stopped
  TOKENFLEET_NATS_URL=nats://host:4222 TOKENFLEET_NATS_USER=slomax TOKENFLEET_NATS_PASSWORD=... \\
    tokenfleet run slomax                        one for a stack elsewhere
"""
)
@click.argument("service")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the stack to join.  [default: TOKENFLEET_STATE_DIR, or .tokenfleet]",
)
def run(service: str, state_dir: Path | None) -> None:
    """Run one service until Ctrl-C.

    Settings come from TOKENFLEET_* variables; those not set come from the stack running from the state folder, if
    there is one. Services: ingress, tokenpilot, slomax, fleetmind, telemetry-collector, goodput-accountant,
    node-agent, emulated-engine.
    """
    if service in known_services():
        join_running_stack(service, state_dir)
    run_service(service)
