"""The bars of routing, each with where it comes from.

Requests are served whatever comes (no admission) on the reference pool of eight instances, or the one named; every
policy sees the same state, equally old.
"""

from lab.bars.kinds import Bar, BelowBaseline, BelowPeers, Cost, Limit, NotBeaten, Throughput
from lab.bars.model import (
    ATTAINMENT,
    ATTAINMENT_AFTER_500,
    GOODPUT,
    P50,
    P95,
    TTFT_ERROR,
    Source,
)

PROTOTYPE = Source("prototype", "what a prototype of predicted TTFT plus the price of new misses came to")
BEST_PEER = Source("best peer", "a quarter below the best router one can run at P50, and no worse at P95")
HEADLINE = Source("headline", "what is published for routing by prefix and load against round robin")
LEARNED = Source(
    "learned", "a profile 15 % wrong for each engine costs a point at most; unlearned, it cost 9"
)
PLANNED = Source("predictions", "off by 15 % at most after 500 requests, so that one can plan by them")
NOBODY = Source("no better", "no published router is better by more than noise, whatever happens to the pool")
WORK = Source("throughput", "latency is not bought with throughput")
OTHERS = Source("shown", "other engines than there: some faster, some slower")

WRONG, RIGHT = "profile_error", "profile_error, truly registered"
"""The same engines, with their profiles as registered off by up to 15 %, and with their real ones."""

COMPARED = ("routing", "offload", "agents")
CHALLENGES = ("hetero", "stale", "burst", "failure")

BARS: tuple[Bar, ...] = (
    Limit(scenario="routing", figure=P50, limit=0.58, source=PROTOTYPE),
    Limit(scenario="routing", figure=P95, limit=4.2, source=PROTOTYPE),
    Limit(scenario="routing", figure=ATTAINMENT, limit=0.97, source=PROTOTYPE),
    Limit(scenario="offload", figure=P50, limit=0.40, source=PROTOTYPE),
    Limit(scenario="offload", figure=P95, limit=3.45, source=PROTOTYPE),
    Limit(scenario="offload", figure=ATTAINMENT, limit=0.985, source=PROTOTYPE),
    Limit(scenario="agents", figure=P50, limit=0.62, source=PROTOTYPE),
    Limit(scenario="agents", figure=P95, limit=5.4, source=PROTOTYPE),
    Limit(scenario="agents", figure=ATTAINMENT, limit=0.88, source=PROTOTYPE),
    Limit(scenario="agents", figure=GOODPUT, limit=745, source=PROTOTYPE),
    *(BelowPeers(scenario=name, figure=P50, share=0.25, source=BEST_PEER) for name in COMPARED),
    *(BelowPeers(scenario=name, figure=P95, share=0.0, source=BEST_PEER) for name in COMPARED),
    *(BelowBaseline(scenario=name, figure=P50, share=0.713, source=HEADLINE) for name in COMPARED),
    *(BelowBaseline(scenario=name, figure=P95, share=0.324, source=HEADLINE) for name in COMPARED),
    Limit(scenario="routing", figure=TTFT_ERROR, limit=0.15, source=PLANNED),
    Cost(scenario=WRONG, against=RIGHT, figure=ATTAINMENT_AFTER_500, most=0.01, source=LEARNED),
    Cost(
        scenario=WRONG,
        against="routing",
        figure=ATTAINMENT_AFTER_500,
        most=0.01,
        source=OTHERS,
        counted=False,
    ),
    *(NotBeaten(scenario=name, figure=figure, source=NOBODY) for name in CHALLENGES for figure in (P50, P95)),
    *(Throughput(scenario=name, within=0.01, source=WORK) for name in (*COMPARED, *CHALLENGES)),
)
