"""The kernel's containment calls through ctypes: namespaces, a private root, Landlock, seccomp, prctl.

Each function raises OSError if the kernel refuses. x86-64 numbers are used where the kernel has no portable name.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 4096, 16384, 1 << 18, 2
_PIVOT_ROOT, _SECCOMP, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 155, 317, 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process `number` when its parent dies. A change of uid clears it: call it after."""
    _prctl(_PR_SET_PDEATHSIG, number, "PR_SET_PDEATHSIG")


def set_dumpable() -> None:
    """Give the process its own /proc files back after a change of uid."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def become_subreaper() -> None:
    """Orphaned descendants become this process's children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def no_new_privileges() -> None:
    """No set-uid program gives anything any more; Landlock and seccomp require it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def unshare(flags: int) -> None:
    """Leave the given namespaces for fresh ones (root or CAP_SYS_ADMIN)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    arguments = [a.encode() if a is not None else None for a in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def mount_tmpfs(target: str, size_mb: int, mode: int = 0o755) -> None:
    """A fresh tmpfs of at most size_mb MiB, without devices and set-uid programs."""
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_mb}m,mode={mode:o},nr_inodes=65536")


def unmount(target: str) -> None:
    """Detach a mount at once, whoever still uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def private_root(readable: Sequence[str]) -> None:
    """Replace "/" by a small tmpfs that holds only `readable` (bound read-only), /proc and a few devices.

    Needs fresh mount and pid namespaces, and to be pid 1 of the latter. Paths that do not exist are left out; symbolic
    links (usr-merge's /bin) are copied as links.
    """
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    paths = [p for p in [*readable, *devices] if os.path.lexists(p)]
    # Opened before the new root hides whatever lies under /tmp.
    sources = {p: os.open(p, os.O_PATH | os.O_CLOEXEC) for p in paths if not os.path.islink(p)}
    links = {p: os.readlink(p) for p in paths if os.path.islink(p)}
    new = "/tmp"
    mount_tmpfs(new, size_mb=4)
    for path, fd in sources.items():
        target = new + path
        is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
        os.makedirs(target if is_folder else os.path.dirname(target), mode=0o755, exist_ok=True)
        if not is_folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(f"/proc/self/fd/{fd}", target, None, _MS_BIND | (_MS_REC if is_folder else 0))
        if path not in devices:
            _mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        os.close(fd)
    for path, text in links.items():
        os.makedirs(os.path.dirname(new + path), mode=0o755, exist_ok=True)
        os.symlink(text, new + path)
    os.makedirs(new + "/proc", exist_ok=True)
    _mount("proc", new + "/proc", "proc", _MS_NOSUID | _MS_NODEV)
    os.chdir(new)
    _check(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def loopback_up() -> None:
    """Bring up `lo` in a fresh network namespace, so that tests may talk to themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # SIOCSIFFLAGS with IFF_UP | IFF_RUNNING
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0x1 | 0x40))


# ---- Landlock

_FS_EXECUTE, _FS_WRITE_FILE, _FS_READ_FILE, _FS_READ_DIR, _FS_TRUNCATE, _FS_IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_FS_ON_FILES = _FS_EXECUTE | _FS_WRITE_FILE | _FS_READ_FILE | _FS_TRUNCATE | _FS_IOCTL


def landlock_abi() -> int:
    """The kernel's Landlock version, 0 if it has none."""
    return max(0, _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def landlock_ruleset(read_only: Sequence[str], read_write: Sequence[str], network: bool) -> int:
    """File descriptor of a ruleset: only these paths, and, from ABI 4 and 6 on, no TCP (unless `network`), no signals
    and no abstract sockets to the outside. Apply it with `landlock_restrict`."""
    abi = landlock_abi()
    all_fs = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    handled_net = 3 if abi >= 4 and not network else 0
    fields = [all_fs, handled_net, 3 if abi >= 6 else 0][: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    attribute = struct.pack(f"={len(fields)}Q", *fields)
    size = ctypes.c_size_t(len(attribute))
    fd = _check(_libc.syscall(_LANDLOCK_CREATE, attribute, size, ctypes.c_uint32(0)), "landlock_create_ruleset")
    reading = _FS_EXECUTE | _FS_READ_FILE | _FS_READ_DIR
    for paths, rights in ((read_only, reading), (read_write, all_fs)):
        for path in paths:
            if not os.path.exists(path):
                continue
            allowed = rights if os.path.isdir(path) else rights & all_fs & _FS_ON_FILES
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", allowed, parent)
            arguments = (ctypes.c_int(fd), ctypes.c_int(1), rule, ctypes.c_uint32(0))
            _check(_libc.syscall(_LANDLOCK_ADD, *arguments), f"landlock_add_rule {path}")
            os.close(parent)
    return fd


def landlock_restrict(fd: int) -> None:
    """Bind this process and all its descendants to the ruleset, for ever. Needs `no_new_privileges`."""
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0)), "landlock_restrict_self")


# ---- seccomp

_DENIED = {  # x86-64: calls that no test needs and that widen the kernel's attack surface or outlive a run
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "userfaultfd": 323,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "move_mount": 429, "open_tree": 428, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "mount_setattr": 442, "unshare": 272, "setns": 308, "keyctl": 250, "add_key": 248,
    "request_key": 249, "bpf": 321, "perf_event_open": 298, "kexec_load": 246, "kexec_file_load": 320,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "swapon": 167, "swapoff": 168,
    "reboot": 169, "settimeofday": 164, "clock_settime": 227, "sethostname": 170, "acct": 163, "quotactl": 179,
    # System V and POSIX queues and segments survive their process: a message to the next run
    "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
}  # fmt: skip
_SOCKET, _CLONE, _CLONE3, _AF_UNIX = 41, 56, 435, 1
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone() takes
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0 = 0, 4, 16
_ARCH_X86_64, _X32_BIT = 0xC000003E, 0x40000000


def seccomp_supported() -> bool:
    """The filter below knows x86-64 only."""
    return platform.machine() == "x86_64" and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def seccomp_filter(network: bool) -> bytes:
    """A classic BPF deny-list: refused calls fail with EPERM. Without `network` only AF_UNIX sockets can be made."""

    def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    program = op(_LOAD, _OFFSET_ARCH) + op(_JEQ, _ARCH_X86_64, 1) + op(_RETURN, _KILL)
    program += op(_LOAD, _OFFSET_NR) + op(_JGE, _X32_BIT, 0, 1) + op(_RETURN, _ERRNO | _EPERM)
    # clone3 hides its flags behind a pointer: say "no such call", and libc falls back to clone.
    program += op(_JEQ, _CLONE3, 0, 1) + op(_RETURN, _ERRNO | _ENOSYS)
    program += op(_JEQ, _CLONE, 0, 4) + op(_LOAD, _OFFSET_ARG0) + op(_JSET, _NEW_NAMESPACES, 0, 1)
    program += op(_RETURN, _ERRNO | _EPERM) + op(_RETURN, _ALLOW)
    if not network:
        program += op(_JEQ, _SOCKET, 0, 4) + op(_LOAD, _OFFSET_ARG0) + op(_JEQ, _AF_UNIX, 1, 0)
        program += op(_RETURN, _ERRNO | _EPERM) + op(_RETURN, _ALLOW)
    for number in sorted(_DENIED.values()):
        program += op(_JEQ, number, 0, 1) + op(_RETURN, _ERRNO | _EPERM)
    return program + op(_RETURN, _ALLOW)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def seccomp_install(program: bytes) -> None:
    """Install the filter for this process and its descendants. Needs `no_new_privileges`."""
    buffer = ctypes.create_string_buffer(program, len(program))
    wrapped = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.syscall(_SECCOMP, ctypes.c_uint(1), ctypes.c_uint(0), ctypes.byref(wrapped)), "seccomp")
