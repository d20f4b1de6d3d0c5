"""What keeps a window from being run again."""

from lab.errors import SimulationError


class WhatIfError(SimulationError):
    """There is nothing to run again, or not all that it takes; the message says what to do."""
