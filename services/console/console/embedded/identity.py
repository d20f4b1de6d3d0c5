"""Who the embedded Postgres runs as.

Postgres refuses to run as root, and as a user that has no name. Neither an account on the host nor another
program may be needed, so the ways are tried in turn, from the one that changes least.
"""

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from console.child import ChildSetup, become, become_keeping_file_access
from tokenfleet.errors import ConfigurationError

NOBODY = 65534
_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A way to run a program as somebody Postgres accepts."""

    description: str
    uid: int
    gid: int
    """Who its files must belong to, as seen from here."""
    enter: Callable[[], None] | None = None
    """What the forked child does to become it."""
    launcher: tuple[str, ...] = ()
    """Words before the program's command, where a program of its own has to do it."""

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """The command that runs a program as this identity, once the child has entered it."""
        return (*self.launcher, program, *arguments)


def choose(program: str, folder: Path) -> Identity:
    """The first identity that can run `program` and work in `folder`, to which the folder then belongs.

    Raises:
        ConfigurationError: none can; the message says what was tried.
    """
    failures: list[str] = []
    for identity in candidates():
        failure = _try(identity, program, folder)
        if failure is None:
            return identity
        failures.append(f"{identity.description}: {failure}")
    raise ConfigurationError(
        "The embedded Postgres cannot run here, since Postgres refuses to run as "
        f"{'root' if os.geteuid() == 0 else 'a user without a name'} and no other way works "
        f"({'; '.join(failures) or 'no way to change user'}). Run as an ordinary user, or set TOKENFLEET_POSTGRES_DSN to a "
        "Postgres server of your own."
    )


def candidates() -> Iterator[Identity]:
    """The identities worth trying for whoever we are, best first."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 and _has_name(uid):
        yield Identity("the current user", uid, gid)
    named = next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if named:
        script = str(Path(__file__).with_name("user_namespace.py"))
        launcher = (sys.executable, "-I", "-S", script, str(named.pw_uid), str(named.pw_gid))
        yield Identity("a user namespace", uid, gid, launcher=launcher)
    if uid == 0 and _has_name(NOBODY):
        yield Identity("the user nobody", NOBODY, NOBODY, partial(become, NOBODY, NOBODY))
        keeping = partial(become_keeping_file_access, NOBODY, NOBODY)
        yield Identity("the user nobody with access to our files", NOBODY, NOBODY, keeping)


def give(folder: Path, identity: Identity) -> None:
    """Make a folder and all in it the identity's own; it may have run as another one before."""
    for path in (folder, *folder.rglob("*")):
        state = path.lstat()
        if (state.st_uid, state.st_gid) != (identity.uid, identity.gid):
            os.chown(path, identity.uid, identity.gid, follow_symlinks=False)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _try(identity: Identity, program: str, folder: Path) -> str | None:
    def enter() -> None:
        if identity.enter:
            identity.enter()
        os.chdir(folder)

    try:
        give(folder, identity)
        completed = subprocess.run(
            identity.command(program, "--version"),
            preexec_fn=ChildSetup(os.getpid(), enter=enter),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            env={"LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        # The child's own reason is lost: subprocess reports any failure before exec as one error.
        return str(error) if isinstance(error, OSError) else "not permitted here"
    return None if completed.returncode == 0 else completed.stderr.strip() or "it failed"
