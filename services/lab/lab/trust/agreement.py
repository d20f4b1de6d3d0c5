"""Two runs of the same requests side by side, and whether they agree."""

import msgspec
from rich.table import Table

from lab.trust.served import Figures

QUANTITIES = (
    ("ttft_p50_s", "TTFT P50, ms", 1000),
    ("ttft_p95_s", "TTFT P95, ms", 1000),
    ("tpot_p50_s", "TPOT P50, ms", 1000),
    ("tpot_p95_s", "TPOT P95, ms", 1000),
    ("prefix_reuse", "prefix tokens reused, %", 100),
)


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two runs."""

    name: str
    reference: float
    ours: float
    agrees: bool

    @property
    def difference(self) -> float:
        """Relative to the reference."""
        return self.ours / self.reference - 1 if self.reference else float(self.ours != 0)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of the same requests."""

    bar: float
    """The relative difference within which two figures agree."""
    quantities: tuple[Quantity, ...]

    @property
    def agrees(self) -> bool:
        return all(quantity.agrees for quantity in self.quantities)

    def as_json(self) -> dict[str, object]:
        """Figures by name, each with its relative difference."""
        return {
            "bar": self.bar,
            "agrees": self.agrees,
            "quantities": {
                quantity.name: {
                    **{key: value for key, value in msgspec.to_builtins(quantity).items() if key != "name"},
                    "difference": quantity.difference,
                }
                for quantity in self.quantities
            },
        }


def agreement(reference: Figures, ours: Figures, bar: float) -> Agreement:
    """Compare two runs by TTFT, TPOT and prefix reuse."""
    quantities: list[Quantity] = []
    for name, _, _ in QUANTITIES:
        theirs, own = getattr(reference, name), getattr(ours, name)
        quantities.append(
            Quantity(name=name, reference=theirs, ours=own, agrees=abs(own - theirs) <= bar * abs(theirs))
        )
    return Agreement(bar=bar, quantities=tuple(quantities))


def agreement_table(title: str, reference: str, ours: str, result: Agreement) -> Table:
    """The figures, their differences, and what is outside the bar."""
    table = Table(
        title=title,
        title_justify="left",
        caption=f"The bar is {result.bar:.0%}. Times are engine time.",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in (reference, ours, "difference"):
        table.add_column(column, justify="right")
    labels = {name: (label, factor) for name, label, factor in QUANTITIES}
    for quantity in result.quantities:
        label, factor = labels[quantity.name]
        table.add_row(
            label,
            f"{quantity.reference * factor:,.1f}",
            f"{quantity.ours * factor:,.1f}",
            f"{quantity.difference:+.1%}",
            style=None if quantity.agrees else "red",
        )
    return table
