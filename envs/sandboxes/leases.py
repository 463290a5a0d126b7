"""What sandboxes hold on a machine, user ids and scratch folders, and how to clear away what dead ones left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path

from boostapr.errors import UserError

_FIRST_UID = 60100  # Debian leaves 60000-64999 to be given out on demand
_NUM_UIDS = 1000


class NoFreeUid(UserError):
    """All slots of this machine are in use."""


def _own_folder() -> Path:
    """This user's folder for locks and scratch. Raises PermissionError if someone else made it."""
    folder = Path(tempfile.gettempdir()) / f"boostapr-{os.geteuid()}"
    folder.mkdir(mode=0o711, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to uid {found.st_uid}: remove it, it must be this user's own folder")
    return folder


def scratch_folder(kind: str) -> Path:
    """A fresh folder that `prune` removes once this process is gone."""
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{kind}-", dir=_own_folder()))


def lease_uid() -> tuple[int, int]:
    """(uid, lock file descriptor): a uid that no other sandbox on this machine uses while the descriptor is open.

    Processes that a dead predecessor left behind under it are killed. Raises NoFreeUid.
    """
    for uid in range(_FIRST_UID, _FIRST_UID + _NUM_UIDS):
        fd = _try_lock(uid)
        if fd is not None:
            _kill_leftovers(uid)
            return uid, fd
    raise NoFreeUid(f"all {_NUM_UIDS} sandbox user ids are in use: use fewer workers")


def _try_lock(uid: int) -> int | None:
    fd = os.open(_own_folder() / f"uid-{uid}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except BlockingIOError:
        os.close(fd)
        return None


def _kill_leftovers(uid: int) -> int:
    """Kill every process of the uid; returns how many there were."""
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    os.kill(int(process.name), signal.SIGKILL)
                    count += 1
    return count


def prune() -> tuple[int, int]:
    """(processes killed, folders removed) of sandboxes whose owners are gone. Running sandboxes are left alone."""
    killed = removed = 0
    folder = _own_folder()
    for lock in folder.glob("uid-*"):
        fd = _try_lock(int(lock.name.removeprefix("uid-")))
        if fd is not None:
            killed += _kill_leftovers(int(lock.name.removeprefix("uid-")))
            os.close(fd)
    for scratch in folder.glob("[0-9]*-*"):
        if not Path(f"/proc/{scratch.name.partition('-')[0]}").exists():
            shutil.rmtree(scratch, ignore_errors=True)
            removed += 1
    return killed, removed
