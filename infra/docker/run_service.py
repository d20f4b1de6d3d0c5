"""Runs the service an image was built for (`$SERVICE`), found by its entry point as `tokenfleet run` finds it.

Service images carry their own package only, so not the `tokenfleet` command and its embedded servers.
"""

import os
import sys
from importlib.metadata import entry_points

GROUP = "tokenfleet.services"


def main() -> None:
    """Run it until it ends; status 2 if the image does not have it."""
    name = os.environ.get("SERVICE", "")
    services = entry_points(group=GROUP)
    if name not in services.names:
        known = ", ".join(sorted(services.names)) or "none"
        print(
            f"This image has no service {name!r}; it has: {known}. Set SERVICE to one of them.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    services[name].load()()


if __name__ == "__main__":
    main()
