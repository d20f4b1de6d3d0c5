"""What a child process does between fork and exec: tie its life to its parent's, and change who it is.

Everything here runs in a forked, single-threaded child, so it is kept to a few system calls.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x2008_0522
_CAP_DAC_OVERRIDE = 1


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """A `preexec_fn`: become someone (`enter`), then ask to be signalled when the parent dies.

    In this order, because the kernel forgets the death signal when credentials change.
    """

    parent_pid: int
    death_signal: int = signal.SIGKILL
    enter: Callable[[], None] | None = None

    def __call__(self) -> None:
        try:
            if self.enter is not None:
                self.enter()
            _check(_libc.prctl(_PR_SET_PDEATHSIG, self.death_signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
        except BaseException as error:
            # subprocess tells the parent only that something failed; the reason would be lost.
            os.write(2, f"not started: {error!r}\n".encode())
            raise
        if os.getppid() != self.parent_pid:
            os._exit(1)  # The parent died before the kernel knew that we care.


def become(uid: int, gid: int) -> None:
    """Drop root for good."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def become_keeping_file_access(uid: int, gid: int) -> None:
    """Drop root but keep, also across exec, the one capability of passing file permissions.

    For programs that refuse to run as root while they lie in a folder that only root may enter.
    """
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    become(uid, gid)
    mask = 1 << _CAP_DAC_OVERRIDE
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")
    raised = _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
    _check(raised, "prctl(PR_CAP_AMBIENT_RAISE)")
