"""Times and spans of time as options of commands."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from tokenfleet.durations import duration_s


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
        with suppress(ValueError):
            return time.time_ns() - round(duration_s(value) * 1e9)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a time such as 2026-05-04T09:00Z nor a duration ago such as 30m or 2h",
                param,
                ctx,
            )
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1e6) * 1_000
