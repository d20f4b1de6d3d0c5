"""The bars of admission, each with where it comes from.

TokenFleet in its default configuration on the reference pool, judged by all offered requests where nothing else is
said. `overload` is the load at which least-requests routing attains 67 %, the two others are beyond what any pool of
that size can serve.
"""

from lab.bars.admission_kinds import Ahead, Fills, Moves, NoLess
from lab.bars.kinds import Bar, Cost, Limit
from lab.bars.model import (
    ADMITTED,
    ATTAINMENT,
    DEADLINES,
    GOOD_SHARE,
    LEAST_LENGTH,
    OTHERS_MET,
    OTHERS_P95,
    OWN_ADMISSION,
    SETTLED,
    STARVED,
    TURNED_BACK,
    WITH_ADMISSION,
    WITHOUT_ADMISSION,
    Source,
    class_met,
)

PROTOTYPE = Source("prototype", "what a prototype of pricing, holding and refusing came to, with margins")
EVERY_LENGTH = Source("every length", "refusing all long prompts is an easy way to a high share met")
UNTHROTTLED = Source("throughput", "what is met is not bought with output")
NO_ADMISSION = Source(
    "no admission", "without admission everybody waits, and hardly anybody is served in time"
)
ADMISSION = Source("best admission", "a peer's own admission is the fair comparison")
PROMISED = Source("promised", "who is let in is served as promised")
OUT_OF_THE_WAY = Source("out of the way", "offline work costs interactive requests nothing one could notice")
FILLS = Source("fills", "and takes what they leave (how that is measured: lab/sim/batch.py)")
SERVED = Source("served", "nobody is passed over for ever for being long: what waits a minute is answered")
FAIR = Source("fair", "a tenant that floods takes nothing from the nine others")
STABLE = Source("stable", "feedback settles within a minute after a step in load and does not oscillate")

OVERLOADS = ("overload18", "overload22")
LONGEST_WAIT_S = 60.0
ALL_BUT_NONE = 0.999

ADMISSION_BARS: tuple[Bar, ...] = (
    Limit(scenario="overload", figure=ATTAINMENT, limit=0.95, policy=WITH_ADMISSION, source=PROTOTYPE),
    Limit(scenario="overload", figure=ADMITTED, limit=0.95, policy=WITH_ADMISSION, source=PROMISED),
    Limit(scenario="overload", figure=GOOD_SHARE, limit=0.985, policy=WITH_ADMISSION, source=PROTOTYPE),
    Limit(scenario="overload", figure=LEAST_LENGTH, limit=0.90, policy=WITH_ADMISSION, source=EVERY_LENGTH),
    NoLess(scenario="overload", rival="least_requests", source=UNTHROTTLED),
    Limit(scenario="overload18", figure=ATTAINMENT, limit=0.88, policy=WITH_ADMISSION, source=PROTOTYPE),
    Limit(scenario="overload18", figure=LEAST_LENGTH, limit=0.75, policy=WITH_ADMISSION, source=EVERY_LENGTH),
    *(
        Limit(scenario=name, figure=ADMITTED, limit=0.95, policy=WITH_ADMISSION, source=PROMISED)
        for name in OVERLOADS
    ),
    *(
        Ahead(
            scenario=name,
            factor=3.0,
            rivals=WITHOUT_ADMISSION,
            which="without admission",
            source=NO_ADMISSION,
        )
        for name in OVERLOADS
    ),
    *(
        Ahead(
            scenario=name,
            factor=1.15,
            rivals=OWN_ADMISSION,
            which="with its own admission",
            source=ADMISSION,
        )
        for name in OVERLOADS
    ),
    *(
        Cost(
            scenario="mixed",
            against="mixed_alone",
            figure=class_met(name),
            most=0.01,
            policy=WITH_ADMISSION,
            source=OUT_OF_THE_WAY,
        )
        for name in ("interactive", "long_context")
    ),
    Fills(scenario="mixed", saturated="mixed_batch", least=0.90, source=FILLS),
    Limit(scenario="mixed", figure=DEADLINES, limit=ALL_BUT_NONE, policy=WITH_ADMISSION, source=FILLS),
    *(
        Limit(
            scenario=name,
            figure=STARVED,
            limit=LONGEST_WAIT_S,
            policy=WITH_ADMISSION,
            source=SERVED,
            counted=name == "mixed",
        )
        for name in ("mixed", *OVERLOADS)
    ),
    Moves(scenario="flood", against="flood_quiet", figure=OTHERS_P95, most=0.10, source=FAIR),
    Cost(
        scenario="flood",
        against="flood_quiet",
        figure=OTHERS_MET,
        most=0.01,
        policy=WITH_ADMISSION,
        counted=False,
        source=FAIR,
    ),
    Limit(scenario="burst", figure=SETTLED, limit=60.0, policy=WITH_ADMISSION, source=STABLE),
    Limit(scenario="burst", figure=TURNED_BACK, limit=1, policy=WITH_ADMISSION, source=STABLE),
)
