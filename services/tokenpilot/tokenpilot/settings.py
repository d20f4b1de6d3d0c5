"""TokenPilot's settings."""

from pydantic import Field

from tokenfleet.settings import Settings


class TokenPilotSettings(Settings):
    """`seed` makes the draws between equal candidates repeatable."""

    seed: int = 1
    request_memory_s: float = Field(default=1200.0, gt=0)
    """Engine seconds after which a request whose end was never reported is forgotten."""
