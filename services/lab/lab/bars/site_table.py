"""The bars of several sites, each with where it comes from.

Three regions whose load swings against each other, and an entry without engines; what one site knows of another is a second
old, and a round trip further away.
"""

from lab.bars.admission_kinds import Ahead
from lab.bars.kinds import Bar, BelowBaseline, Cost, Limit
from lab.bars.model import (
    ATTAINMENT,
    LEAST_LENGTH,
    LEAST_TENANT,
    OURS,
    P50,
    P95,
    REGION_LOCAL,
    RESIDENCY,
    SITE_PEERS,
    WITH_ADMISSION,
    Source,
)
from lab.bars.site_kinds import Fewer

PROTOTYPE = Source("prototype", "what a prototype of placing by summaries a second old came to, with margins")
BEST_PEER = Source("best peer", "the published ways to choose among regions, at the same round trips")
FAR_END = Source("far end", "the most that a paper on it claims over regions that each serve their own")
EVERY_LENGTH = Source("every length", "refusing all long prompts is an easy way to a high share met")
POOLED = Source("pooled", "what is free elsewhere need not be bought")
ONE_POOL = Source(
    "one pool", "sites, residency and versions cost hardly anything against one pool of as many"
)
LAW = Source("law", "what may not leave a place does not, whatever it costs")

SITE_BARS: tuple[Bar, ...] = (
    Limit(scenario="multisite", figure=P50, limit=0.52, source=PROTOTYPE),
    Limit(scenario="multisite", figure=P95, limit=3.9, source=PROTOTYPE),
    Limit(scenario="multisite", figure=ATTAINMENT, limit=0.98, source=PROTOTYPE),
    Limit(scenario="multisite", figure=ATTAINMENT, limit=0.98, policy=WITH_ADMISSION, source=PROTOTYPE),
    Limit(scenario="multisite", figure=LEAST_LENGTH, limit=0.95, source=EVERY_LENGTH),
    Ahead(
        scenario="multisite",
        factor=1.10,
        rivals=SITE_PEERS,
        which="that chooses among sites",
        policy=OURS,
        source=BEST_PEER,
    ),
    Ahead(
        scenario="multisite",
        factor=2.06,
        rivals=(REGION_LOCAL,),
        which="of regions by themselves",
        policy=OURS,
        source=FAR_END,
    ),
    *(
        BelowBaseline(
            scenario="multisite", figure=figure, share=1 - 1 / 6.3, rival=REGION_LOCAL, source=FAR_END
        )
        for figure in (P50, P95)
    ),
    Fewer(scenario="multisite", larger="multisite17", attained=0.98, share=0.30, source=POOLED),
    Limit(scenario="multisite25", figure=ATTAINMENT, limit=0.92, policy=WITH_ADMISSION, source=PROTOTYPE),
    Limit(
        scenario="multisite25", figure=LEAST_LENGTH, limit=0.85, policy=WITH_ADMISSION, source=EVERY_LENGTH
    ),
    Ahead(
        scenario="multisite25",
        factor=1.10,
        rivals=SITE_PEERS,
        which="that chooses among sites",
        source=BEST_PEER,
    ),
    Cost(
        scenario="entry",
        against="entry_pool",
        figure=ATTAINMENT,
        most=0.02,
        policy=WITH_ADMISSION,
        source=ONE_POOL,
    ),
    Limit(scenario="entry", figure=LEAST_TENANT, limit=0.92, policy=WITH_ADMISSION, source=ONE_POOL),
    *(
        Limit(scenario="entry", figure=RESIDENCY, limit=0, policy=policy, source=LAW)
        for policy in (OURS, WITH_ADMISSION)
    ),
)
