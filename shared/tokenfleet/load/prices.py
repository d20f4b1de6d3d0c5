"""What seconds are worth to whoever chooses where a request goes: site, moment and instance weigh them alike.

Found by trials in the simulator: docs/adr/0008-expected-cost.md.
"""

MISS_PRICE_S = 3.0
"""Seconds of its own wait that a request gives to spare another one a miss."""
WORK_PRICE = 0.4
"""Prefill that a cache hit saves is capacity for others: worth this much beyond the time it saves the request."""
