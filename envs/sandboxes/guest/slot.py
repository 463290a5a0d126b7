"""One slot: the folders a run may write to, the walls around it, and the end of every process in it."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import linux

_BOX = "/box"  # where the private root has the writable tmpfs
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_KILL_DEADLINE_S = 10.0
MIB = 1 << 20


@dataclass(frozen=True)
class Config:
    """The first message to the server. Sizes in MiB; uid None: stay who we are; folder: the box without namespaces."""

    uid: int | None
    folder: str
    readable: tuple[str, ...]
    namespaces: bool
    landlock: bool
    seccomp: bool
    disk_mb: int
    max_processes: int
    max_open_files: int
    output_limit_bytes: int


@dataclass
class Slot:
    """State of the slot inside its server. `enter` must have run before anything else is used."""

    config: Config
    base: str = ""
    contained: list[str] = field(default_factory=list)
    _ruleset: int | None = None
    _filter: bytes | None = None

    @property
    def work(self) -> str:
        """The tree under test, the current directory of the run."""
        return f"{self.base}/work"

    @property
    def tmp(self) -> str:
        """TMPDIR and HOME of the run."""
        return f"{self.base}/tmp"

    @property
    def report(self) -> str:
        """Where `{report}` points."""
        return f"{self.base}/report/junit.xml"

    @property
    def has_own_root(self) -> bool:
        """True if the slot has namespaces of its own, with a tmpfs as its box."""
        return "namespaces" in self.contained

    def enter(self) -> None:
        """Put up the walls that stand around all runs. With namespaces this forks, and only pid 1 of the new pid
        namespace returns; the process that stays outside waits for it and ends with it.

        Raises OSError if namespaces were asked for and the kernel refuses them.
        """
        config = self.config
        if config.namespaces:
            self._enter_namespaces()
            self.base = _BOX
            os.mkdir(_BOX, 0o755)
            linux.mount_tmpfs(_BOX, config.disk_mb)
            for link in ("/tmp", "/dev/shm"):
                if not os.path.lexists(link):  # it exists if something readable lies below it
                    os.symlink(f"{_BOX}/tmp", link)
            self.contained += ["namespaces", "network", "disk"]
        else:
            linux.become_subreaper()
            self.base = config.folder
        if config.uid is not None:
            self.contained.append("own_uid")
        if config.landlock and linux.landlock_abi() > 0:
            self._make_ruleset()
            self.contained.append("landlock")
        if config.seccomp and linux.seccomp_supported():
            self._filter = linux.seccomp_filter(network=self.has_own_root)
            self.contained += ["seccomp"] if self.has_own_root else ["seccomp", "network"]
        self.wipe()

    def _enter_namespaces(self) -> None:
        linux.unshare(
            linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
        )
        pid = os.fork()
        if pid:
            for fd in range(3):  # the ends of the pipes must close when pid 1 does
                os.close(fd)
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        linux.set_parent_death_signal(signal.SIGKILL)
        linux.private_root(self.config.readable)
        with contextlib.suppress(OSError):
            linux.loopback_up()

    def _make_ruleset(self) -> None:
        """Rules hold on to the folder that was at the path: a new mount needs new rules."""
        if self._ruleset is not None:
            os.close(self._ruleset)
        read_only = ["/"] if self.has_own_root else [*self.config.readable, "/proc"]
        self._ruleset = linux.landlock_ruleset(read_only, [self.base, *_DEVICES], network=self.has_own_root)

    # ---- files

    def wipe(self) -> None:
        """Remove whatever the last run left, and make the three folders anew."""
        for entry in os.listdir(self.base):
            try:
                shutil.rmtree(f"{self.base}/{entry}")
            except (OSError, RecursionError):
                self._wipe_by_force()
                break
        # Sticky and owned by the server: a run may add files, but not replace or move those of others (the tests).
        for path, mode in ((self.work, 0o1777), (self.tmp, 0o1777), (os.path.dirname(self.report), 0o1777)):
            os.mkdir(path)
            os.chmod(path, mode)

    def _wipe_by_force(self) -> None:
        """For trees too deep, or locked by their modes."""
        if self.has_own_root:
            linux.unmount(self.base)
            linux.mount_tmpfs(self.base, self.config.disk_mb)
            if self._ruleset is not None:
                self._make_ruleset()
            return
        for entry in os.listdir(self.base):
            subprocess.run(
                ["chmod", "-R", "u+rwX", "--", f"{self.base}/{entry}"], check=False, stderr=subprocess.DEVNULL
            )
            subprocess.run(["rm", "-rf", "--", f"{self.base}/{entry}"], check=True)

    def write_tree(self, files: Iterable[tuple[str, int, bool]], contents: list[bytes]) -> None:
        """Write (path, mode, is_protected) with their contents under `work`; the folder must be empty.

        Protected files (the tests) stay the server's where the run has a uid of its own; the others are the run's.
        """
        folders: set[str] = set()
        for (path, mode, is_protected), content in zip(files, contents, strict=True):
            target = f"{self.work}/{path}"
            folder = os.path.dirname(target)
            missing = []
            while folder != self.work and folder not in folders:
                missing.append(folder)
                folders.add(folder)
                folder = os.path.dirname(folder)
            for new in reversed(missing):
                os.mkdir(new)
                os.chmod(new, 0o1777)
            fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode & 0o777)
            with open(fd, "wb") as file:
                file.write(content)
                if self.config.uid is not None and not is_protected:
                    os.fchown(fd, self.config.uid, self.config.uid)

    def read_file(self, path: str, limit: int) -> bytes | None:
        """A plain file that a run wrote, cut at `limit` bytes; None if it is missing or something else."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(fd, "rb") as file:
            try:
                return file.read(limit)
            except OSError:
                return None

    def disk_used_mb(self) -> float:
        """MiB below the box, for slots without a tmpfs."""
        blocks, folders = 0, [self.base]
        while folders:  # not os.walk: it recurses, and the tree may be as deep as a hostile run likes
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        blocks += entry.stat(follow_symlinks=False).st_blocks
        return blocks * 512 / MIB

    # ---- processes

    def restrict(self, timeout_s: float, memory_bytes: int | None) -> None:
        """In the forked child: limits, uid, Landlock, seccomp; there is no way back."""
        config = self.config
        cpu = cpu_limit_s(timeout_s)
        limits = [
            (resource.RLIMIT_FSIZE, config.disk_mb * MIB),
            (resource.RLIMIT_NOFILE, config.max_open_files),
            (resource.RLIMIT_CORE, 0),
        ]
        if memory_bytes is not None:
            limits.append((resource.RLIMIT_AS, memory_bytes))
        if (
            config.uid is not None
        ):  # counted per user: without one of its own the limit would hit the person's processes
            limits.append((resource.RLIMIT_NPROC, config.max_processes))
        for kind, value in limits:
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        if config.uid is not None:
            os.setgroups([])
            os.setresgid(config.uid, config.uid, config.uid)
            os.setresuid(config.uid, config.uid, config.uid)
        linux.set_dumpable()
        linux.set_parent_death_signal(signal.SIGKILL)
        linux.no_new_privileges()
        if self._ruleset is not None:
            linux.landlock_restrict(self._ruleset)
            os.close(self._ruleset)
        if self._filter is not None:
            linux.seccomp_install(self._filter)

    def members(self) -> list[int]:
        """Pids of all processes of the run: this one is pid 1, or the subreaper, of every one of them."""
        if self.has_own_root:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        found: list[int] = []
        queue = [os.getpid()]
        while queue:
            pid = queue.pop()
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children") as file:
                        children = [int(child) for child in file.read().split()]
                    found += children
                    queue += children
        return found

    def memory_mb(self, limit_mb: float) -> float:
        """Memory of all processes of the run in MiB: the sum of what is resident, and only where that exceeds
        `limit_mb` the dearer sum in which pages shared between processes count once (PSS)."""
        pids = self.members()
        resident = sum(_resident_pages(pid) for pid in pids) * os.sysconf("SC_PAGE_SIZE") / MIB
        if resident <= limit_mb:
            return resident
        return sum(_proportional_kib(pid) for pid in pids) / 1024

    def kill_all(self) -> float:
        """Kill and reap every process of the run; returns their CPU seconds.

        That no child is left proves that no process is: orphans become children of pid 1 or the subreaper.
        Raises TimeoutError if some cannot be killed.
        """
        cpu = 0.0
        end = time.monotonic() + _KILL_DEADLINE_S
        while True:
            self._kill_once()
            try:
                while True:
                    pid, _, usage = os.wait4(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    cpu += usage.ru_utime + usage.ru_stime
            except ChildProcessError:
                return cpu
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.members())} processes of the run cannot be killed")
            time.sleep(0.001)

    def _kill_once(self) -> None:
        if self.has_own_root:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # as pid 1: all of the namespace but itself
        elif self.config.uid is not None:
            helper = os.fork()
            if helper == 0:  # the kernel walks the list for us, faster than any fork bomb
                os.setresuid(self.config.uid, self.config.uid, self.config.uid)
                os.kill(-1, signal.SIGKILL)
                os._exit(0)
            os.waitpid(helper, 0)
        else:
            for pid in self.members():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def cpu_limit_s(timeout_s: float) -> int:
    """CPU seconds that each process of a run may use: the wall clock's limit, rounded up."""
    return math.ceil(timeout_s)


def starved_s(pid: int) -> float:
    """Seconds for which the process could have run but no core was free; 0 if the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _resident_pages(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError):
        return 0


def _proportional_kib(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def address_space_bytes() -> int:
    """This process's own address space: what a forked run starts with."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
