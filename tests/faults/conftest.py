"""The slowest of these run by `make test-faults` only: each starts stacks of its own and waits for outages to end."""

import os

collect_ignore = (
    []
    if os.environ.get("TOKENFLEET_TEST_FAULTS")
    else [
        "test_lost_requests.py",
        "test_site_residency.py",
        "test_site_spill.py",
        "test_site_topology.py",
        "test_sites.py",
    ]
)
