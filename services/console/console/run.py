"""`python -m console.run SERVICE`: one service in this process, found by its entry point.

Kept free of the command line's imports, since every process of a stack starts here.
"""

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from console.environment import PREFIX, service_variables
from console.state import StateFolder
from tokenfleet.errors import ConfigurationError, TokenFleetError
from tokenfleet.running_stack import default_state_dir

GROUP = "tokenfleet.services"


def known_services() -> list[str]:
    """Names of the installed services."""
    return sorted(entry_points(group=GROUP).names)


def run_service(name: str) -> None:
    """Run a service until it ends.

    Raises:
        ConfigurationError: no installed package has it.
    """
    try:
        entry = entry_points(group=GROUP)[name]
    except KeyError as error:
        raise ConfigurationError(
            f"There is no service named {name}. Known: {', '.join(known_services())}."
        ) from error
    entry.load()()


def join_running_stack(name: str, state_dir: Path | None = None) -> None:
    """Fill what the environment does not say from the stack that runs from the state folder, if one does."""
    record = StateFolder(state_dir or default_state_dir()).read_run()
    if record is None:
        return
    variables = service_variables(name, record)
    if f"{PREFIX}NATS_URL" in os.environ:
        # Another server than the stack's: its passwords would be of no use there.
        variables = {key: value for key, value in variables.items() if not key.startswith(f"{PREFIX}NATS_")}
    for key, value in variables.items():
        os.environ.setdefault(key, value)


def main() -> None:
    """Run the service named by the first argument."""
    try:
        run_service(sys.argv[1])
    except TokenFleetError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
