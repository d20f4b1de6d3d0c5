"""What goes wrong in the lab."""

from pathlib import Path

from tokenfleet.errors import TokenFleetError


class TraceError(TokenFleetError):
    """A trace file cannot be used; the message names the file and, where there is one, the line."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")
        self.line = line


class ReplayError(TokenFleetError):
    """A replay could not start, or ended without every request accounted for."""


class TrustError(TokenFleetError):
    """A comparison of the simulator with something else could not be made."""


class SimulationError(TokenFleetError):
    """A simulation could not be finished, through no fault of its scenario."""


class ScenarioError(TokenFleetError):
    """A scenario cannot be used; the message names its file and what is wrong."""
