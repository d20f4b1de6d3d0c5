"""Run as a script: `user_namespace.py INSIDE_UID INSIDE_GID PROGRAM ARGS...` becomes PROGRAM in a user namespace.

There it looks like `INSIDE_UID` to itself and to the kernel's root checks, while files stay the caller's own. The
one mapping of one's own id needs no privilege beyond creating the namespace.

A program of its own, because only a process with a single thread may enter a namespace: a library may start
threads in every forked child of the parent (OpenTelemetry's exporters do).
"""

import ctypes
import os
import sys

_CLONE_NEWUSER = 0x1000_0000
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main() -> None:
    """Enter, and exec."""
    inside_uid, inside_gid, program = sys.argv[1:4]
    outside_uid, outside_gid, parent = os.geteuid(), os.getegid(), os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    death_signal = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death_signal), 0, 0, 0)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        sys.exit(f"a user namespace cannot be made: {os.strerror(code)}")
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{inside_uid} {outside_uid} 1")
        _write("/proc/self/gid_map", f"{inside_gid} {outside_gid} 1")
    except OSError as error:
        sys.exit(f"a user namespace cannot be set up: {error}")
    # The kernel forgets the death signal when credentials change.
    libc.prctl(_PR_SET_PDEATHSIG, death_signal.value, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execv(program, sys.argv[3:])  # noqa: S606 - this is what it is for


if __name__ == "__main__":
    main()
