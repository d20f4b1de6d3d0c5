"""The folder of ready files, looked at again and again.

Polling finds changes on every file system, network volumes included, and needs no library.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from node_agent.policy.engine_spec import EngineSpec, parse_ready_file
from tokenfleet.errors import ConfigurationError

log = structlog.get_logger(__name__)

SUFFIX = ".json"

_Stamp = tuple[int, int, int]


@dataclass(slots=True)
class EngineFolder:
    """Remembers what it has read, so that only changed files are read again."""

    path: Path
    _stamps: dict[str, _Stamp] = field(default_factory=dict)
    _specs: dict[str, EngineSpec] = field(default_factory=dict)
    _missing_reported: bool = False

    def scan(self) -> dict[str, EngineSpec]:
        """The engines there now, by instance name. A wrong file is logged once and counts as it was before."""
        stamps = self._list()
        for instance in self._stamps.keys() - stamps.keys():
            self._specs.pop(instance, None)
        for instance, stamp in stamps.items():
            if self._stamps.get(instance) != stamp:
                self._read(instance)
        self._stamps = stamps
        return dict(self._specs)

    def _list(self) -> dict[str, _Stamp]:
        try:
            with os.scandir(self.path) as entries:
                return dict(filter(None, map(_stamp, entries)))
        except OSError as error:
            if not self._missing_reported:
                log.warning("the engines folder cannot be read; looking again", error=str(error))
                self._missing_reported = True
            return {}

    def _read(self, instance: str) -> None:
        path = self.path / f"{instance}{SUFFIX}"
        try:
            self._specs[instance] = parse_ready_file(path.read_bytes())
        except (OSError, ConfigurationError) as error:
            log.error("engine file skipped", file=str(path), error=str(error))


def _stamp(entry: "os.DirEntry[str]") -> tuple[str, _Stamp] | None:
    instance = entry.name.removesuffix(SUFFIX)
    if instance in ("", entry.name) or entry.name.startswith("."):
        return None
    try:
        status = entry.stat()
    except OSError:  # removed since it was listed
        return None
    return instance, (status.st_ino, status.st_mtime_ns, status.st_size)
