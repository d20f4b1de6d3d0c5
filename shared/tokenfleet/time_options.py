"""Times and spans of time as options of commands."""

import time
from typing import Any

import click

from tokenfleet.durations import duration_s, moment_ns


class Duration(click.ParamType):
    """`30s`, `15m`, `1h`, `7d`: a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType):
    """A time as Unix ns: ISO 8601 (UTC unless it says otherwise), or a duration ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return moment_ns(value, time.time_ns())
        except ValueError as error:
            self.fail(str(error), param, ctx)
