"""Only `make test-audit` runs these: they take minutes."""

import os

collect_ignore_glob = [] if os.environ.get("TOKENFLEET_TEST_AUDIT") else ["test_*.py"]
