"""Exits 0 if this container's /health, at `$HEALTH_PORT`, answers 200; else says why and exits 1."""

import http.client
import os
import sys

TIMEOUT_S = 5.0


def main() -> None:
    """Ask once. Not by urllib, which would ask a proxy if the container is given one."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["HEALTH_PORT"]), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
    except OSError as error:
        sys.exit(f"/health does not answer: {error}")
    print(body)
    if response.status != http.HTTPStatus.OK:
        sys.exit(f"/health answers {response.status}")


if __name__ == "__main__":
    main()
