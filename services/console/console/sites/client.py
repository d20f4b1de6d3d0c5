"""Asking the links between sites how they are, and changing them."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from console.sites.links import LinkReport
from tokenfleet.errors import ConfigurationError, UnavailableError

TIMEOUT_S = 3.0


def read_links(url: str) -> list[LinkReport]:
    """Every link.

    Raises:
        UnavailableError: the links do not answer.
    """
    return msgspec.json.decode(_call(f"{url}/links"), type=list[LinkReport])


def change_links(url: str, which: str, change: Mapping[str, Any]) -> list[LinkReport]:
    """Change one link (`B-C`), or every link of a site (`B`); without a change they are only shown.

    Raises:
        ConfigurationError: there is no such link or site.
        UnavailableError: the links do not answer.
    """
    known = [report.link for report in read_links(url)]
    first, _, second = which.partition("-")
    wanted = [
        link
        for link in known
        if (link in (which, f"{second}-{first}") if second else which in link.split("-"))
    ]
    if not wanted:
        raise ConfigurationError(f"There is no link or site {which}. The links: {', '.join(known)}.")
    body = json.dumps(change).encode()
    return [msgspec.json.decode(_call(f"{url}/links/{link}", body), type=LinkReport) for link in wanted]


def _call(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, method="PATCH" if body is not None else "GET")  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise UnavailableError(f"The links between the sites do not answer at {url}: {error}.") from error
