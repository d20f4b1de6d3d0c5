"""What goes wrong with the results of lab runs."""

from pathlib import Path

from tokenfleet.errors import TokenFleetError


class RunFileError(TokenFleetError):
    """A file is not the JSON of a lab run, or not one that can be reported; the message names the file."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}\n  {remedy}")
