"""Kinds of values that the lab's commands take."""

from math import isfinite
from typing import Any

import click


class Finite(click.FloatRange):
    """A number within a range. Click's own lets `nan` through, which compares with nothing, and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


POSITIVE = Finite(min=0, min_open=True)
