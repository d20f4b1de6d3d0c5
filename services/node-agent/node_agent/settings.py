"""The node agent's settings."""

import os
from pathlib import Path

from pydantic import Field

from tokenfleet.settings import Settings


class NodeAgentSettings(Settings):
    """Read from `TOKENFLEET_*`."""

    node: str = Field(default_factory=lambda: os.uname().nodename, min_length=1)
    engines_dir: Path = Path(".tokenfleet/engines")
    """Watched for `<instance>.json` ready files."""
    state_interval_s: float = Field(default=0.1, gt=0)
    """Between two readings of an engine, in wall seconds."""
    scrape_timeout_s: float = Field(default=1.0, gt=0)
