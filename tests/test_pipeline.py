"""The driver: order, skipping, forcing, failing, and being killed, with stand-ins for the stages in real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from boostapr.config import load
from boostapr.errors import UserError
from boostapr.supervise import LABEL
from stages.chain import chain, check_files, merge, settings_of, view
from stages.config import Config

# A stage that leaves what the real one would, after noting its name; told to, it fails or hangs with a child of its own.
STAGE = """
import os, pathlib, subprocess, sys, time
from stages.chain import stage_main
def main(config, stage):
    with open("trace", "a") as trace:
        trace.write(stage.folder.name + "\\n")
    told = pathlib.Path(stage.folder.name).read_text() if pathlib.Path(stage.folder.name).exists() else ""
    if told == "fail":
        raise ValueError("as told")
    if told == "hang":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        pathlib.Path("pids.new").write_text(f"{os.getpid()} {child.pid}")
        os.rename("pids.new", "pids")
        time.sleep(600)
    for made in stage.stage.makes:
        (stage.folder / made).mkdir(exist_ok=True)
    return told != "more"
stage_main(sys.argv.pop(), main) if "BOOSTAPR_RUN" in os.environ else None
"""
# The real driver with the real chain, except for the modules that it starts.
DRIVER = """
import dataclasses, sys
import stages.chain as c
real = c.chain
names = sys.argv.pop().split(",")
c.chain = lambda config: tuple(dataclasses.replace(s, module="stand_in_" + s.name) for s in real(config))
c.launch(lambda config, overrides: c.drive(config, overrides, names))
"""
ALL = "demonstrations,sft,candidates,reward,ppo,evaluate"


class Workplace:
    """A folder with the stand-ins; `start` runs the driver in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (*ALL.split(","), "ppo_r_seq"):
            module = "ppo" if name == "ppo_r_seq" else name
            (folder / f"stand_in_{name}.py").write_text(STAGE.replace("sys.argv.pop()", repr(module)))
        (folder / "driver.py").write_text(DRIVER)

    def start(self, names: str, *overrides: str) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if key != LABEL}
        return subprocess.Popen(
            [sys.executable, "driver.py", "experiment=demo", *overrides, names],
            cwd=self.folder,
            env={**environment, "PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, names: str, *overrides: str) -> tuple[int, str]:
        process = self.start(names, *overrides)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def trace(self) -> list[str]:
        """The stages that ran since the last look."""
        path = self.folder / "trace"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def tell(self, stage: str, what: str) -> None:
        (self.folder / stage).write_text(what)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


@pytest.mark.integration
def test_stages_run_in_order_are_skipped_when_done_and_redone_when_forced(place: Workplace) -> None:
    code, output = place.run("demonstrations,sft")
    assert (code, place.trace()) == (0, ["demonstrations", "sft"]), output
    assert (place.folder / "runs/demo/sft/config.yaml").read_text().startswith("seed: 0")
    code, output = place.run("demonstrations,sft")
    assert (code, place.trace()) == (0, []), output
    assert "done" in output
    code, output = place.run("demonstrations,sft", "force=[sft]")
    assert (code, place.trace()) == (0, ["sft"]), output
    code, output = place.run("demonstrations,sft", "seed=1")
    assert (code, place.trace()) == (2, []), output
    assert "seed: 0 -> 1" in output
    assert "Traceback" not in output
    code, output = place.run(
        "candidates", "sft.num_epochs=9"
    )  # settings of a finished stage that this one does not see
    assert (code, place.trace()) == (0, ["candidates"]), output


@pytest.mark.integration
def test_a_failed_stage_stops_the_run_and_is_continued(place: Workplace) -> None:
    place.tell("sft", "fail")
    code, output = place.run("demonstrations,sft,candidates")
    assert code == 1
    assert place.trace() == ["demonstrations", "sft"]
    assert "sft failed" in output
    assert "ValueError: as told" in (place.folder / "runs/demo/sft/log.txt").read_text()
    place.tell("sft", "")
    assert place.run("demonstrations,sft,candidates")[0] == 0
    assert place.trace() == ["sft", "candidates"]


@pytest.mark.integration
def test_a_stage_alone_needs_the_files_of_those_before(place: Workplace) -> None:
    code, output = place.run("reward")
    assert code == 2
    assert "which stage sft makes" in output
    assert "boostapr pipeline experiment=demo" in output
    assert place.trace() == []


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_work_nothing_is_left_and_it_continues(place: Workplace, number: signal.Signals) -> None:
    """The issue's resilience: SIGKILL to the driver, or Ctrl-C; then the same command completes the run."""
    place.tell("sft", "hang")
    driver = place.start("demonstrations,sft")
    wait_for((place.folder / "pids").exists)
    pids = [int(word) for word in (place.folder / "pids").read_text().split()]
    assert all(map(psutil.pid_exists, pids))
    code, output = place.run("demonstrations,sft")
    assert code == 2
    assert f"process {driver.pid}" in output
    os.killpg(driver.pid, number)
    output, _ = driver.communicate(timeout=120)
    wait_for(lambda: not any(map(psutil.pid_exists, pids)))
    if number is signal.SIGINT:
        assert driver.returncode == 130
        assert output.count("Interrupted.") == 1
        assert "Traceback" not in output
    place.tell("sft", "")
    place.trace()
    assert place.run("demonstrations,sft")[0] == 0
    assert place.trace() == ["sft"]


@pytest.mark.integration
def test_rivals_are_trained_in_folders_of_their_own(place: Workplace) -> None:
    """One run, two policies of stage III, told apart by their settings alone; evaluation may end well and unfinished."""
    place.tell("eval", "more")
    code, output = place.run(f"{ALL.replace(',evaluate', '')},ppo_r_seq,evaluate", "+rivals.ppo_r_seq.credit=r_seq")
    assert code == 0, output
    assert place.trace() == ["demonstrations", "sft", "candidates", "reward", "ppo", "ppo_r_seq", "eval"]
    run = place.folder / "runs/demo"
    assert "algorithm: boostapr" in (run / "ppo/config.yaml").read_text()
    assert "algorithm: r_seq" in (run / "ppo_r_seq/config.yaml").read_text()
    assert (run / "ppo_r_seq/done.json").exists()
    assert not (run / "eval/done.json").exists()


@pytest.mark.integration
def test_sweeps_check_every_job_before_the_first(place: Workplace) -> None:
    """`-m seed=0,x` must not train seed 0 for an hour and then complain about x."""
    code, output = place.run("demonstrations", "-m", "seed=0,1", "name=s${seed}")
    assert (code, place.trace()) == (0, ["demonstrations", "demonstrations"]), output
    assert (place.folder / "runs/s1/demonstrations/done.json").exists()
    code, output = place.run("demonstrations", "-m", "seed=2,-1", "name=s${seed}")
    assert (code, place.trace()) == (2, []), output
    assert "`seed` is -1" in output
    left = {path.name for path in place.folder.iterdir() if path.suffix != ".py"}
    assert left - {"__pycache__"} == {"runs"}  # Hydra writes no folders and logs of its own


def test_a_stage_sees_only_what_the_chain_declares() -> None:
    """Else a stage could depend on a setting whose change would not make its result stale."""
    config = load(Config, ["experiment=demo"])
    stage = chain(config)[0]
    seen = view(config, stage)
    assert seen.demonstrations == config.demonstrations
    with pytest.raises(AttributeError, match="ppo"):
        _ = seen.ppo
    assert set(settings_of(config, [], stage)) == set(stage.settings)


def test_missing_files_are_named_before_any_work(tmp_path: Path) -> None:
    """Not after an hour, when the stage that reads them begins."""
    splits = ("train", "dev", "test", "test_ood")
    files = [f"benchmark.files.{split}={tmp_path / split}.jsonl" for split in splits]
    for split in splits[1:]:
        (tmp_path / f"{split}.jsonl").touch()
    config = load(Config, ["experiment=demo", "benchmark=jsonl", *files, "sft.model=models/nothing"])
    with pytest.raises(UserError) as error:
        check_files(config)
    message = str(error.value)
    assert f"`benchmark.files.train`: there is no file {tmp_path}/train.jsonl" in message
    assert "`sft.model`: there is no folder models/nothing" in message
    assert "dev" not in message
    check_files(load(Config, ["experiment=demo", "sft.model=Qwen/Qwen2.5-Coder-7B-Instruct"]))


def test_overrides_of_a_rival_replace_those_of_the_run() -> None:
    assert merge(["experiment=demo", "credit=boostapr", "force=[sft]", "seed=1"], ["credit=r_seq", "policy=x"]) == [
        "experiment=demo",
        "seed=1",
        "credit=r_seq",
        "policy=x",
    ]
