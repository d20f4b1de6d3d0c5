"""The slowest of these run by `make test-faults` only: each starts stacks of its own and waits for outages to end."""

import os

asked = os.environ.get("TOKENFLEET_TEST_FAULTS")
collect_ignore = (
    []
    if asked
    else [
        "test_lost_requests.py",
        "test_site_residency.py",
        "test_site_spill.py",
        "test_site_topology.py",
        "test_sites.py",
    ]
)
if not asked and not os.environ.get("TOKENFLEET_TEST_LEDGER_FAULTS"):
    collect_ignore.append("test_ledger_faults.py")
