"""The run folder: what counts as finished, what is stale, who may work in it, and what survives a kill."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boostapr.errors import UserError
from boostapr.files import JsonlWriter, read_jsonl, write_atomic, write_json
from boostapr.metrics import MetricsWriter
from boostapr.runs import MissingInput, Run, RunLocked, Stage, StaleStage, versions

CHAIN = (
    Stage("data", folder="data", title="", needs=(), settings=("seed",), makes=("rows.jsonl",)),
    Stage("model", folder="model", title="", needs=("data",), settings=("seed", "model"), makes=("weights",)),
    Stage("judge", folder="judge", title="", needs=("model",), settings=("seed",)),
    Stage("table", folder="table", title="", needs=("data", "judge"), settings=("seed", "systems"), grows=True),
)
SETTINGS: dict[str, Any] = {"seed": 0, "model": {"lr": 1e-5, "path": "m"}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "runs" / "x", CHAIN, "experiment=demo", local=("model.threads",))


def finish(run: Run, name: str, values: dict[str, Any] | None = None) -> None:
    stage = run.open(run[name], SETTINGS if values is None else values)
    for path in stage.stage.makes:
        (stage.folder / path).write_text("{}\n")
    stage.finish()


def test_a_stage_is_finished_only_by_finish(run: Run) -> None:
    """A kill at any moment before done.json leaves the stage unfinished."""
    stage = run.open(run["data"], SETTINGS)
    assert run.done("data") is None
    with pytest.raises(RuntimeError, match="without leaving"):
        stage.finish()
    assert run.done("data") is None
    (stage.folder / "rows.jsonl").write_text("{}\n")
    stage.finish(kept=3)
    record = run.done("data")
    assert record is not None
    assert record["kept"] == 3
    assert record["wall_s"] >= 0
    assert record["resumed"] is False
    assert run.open(run["data"], SETTINGS).resumed
    assert record["versions"]["boostapr"] == versions()["boostapr"]


def test_inputs_name_the_stage_and_command_that_make_them(run: Run) -> None:
    """The issue's "a missing file": which stage makes it, with which command."""
    with pytest.raises(MissingInput) as error:
        run.open(run["model"], SETTINGS)
    assert "boostapr data experiment=demo" in str(error.value)
    assert "boostapr pipeline experiment=demo" in str(error.value)
    finish(run, "data")
    stage = run.open(run["model"], SETTINGS)
    assert stage.input("data/rows.jsonl").exists()
    with pytest.raises(MissingInput, match="which stage data makes"):
        stage.input("data/other.jsonl")
    with pytest.raises(MissingInput, match="no stage makes"):
        stage.input("elsewhere")


def test_other_settings_make_a_stage_stale(run: Run) -> None:
    """Finished or begun: nothing made with other settings is taken, and the message lists every key that differs."""
    finish(run, "data")
    finish(run, "model")
    run.check(run["model"], {"seed": 0, "model": {"lr": 0.00001, "path": "m", "threads": 8}})  # local keys do not count
    with pytest.raises(StaleStage) as error:
        run.check(run["model"], {"seed": 0, "model": {"lr": 0.1, "path": "m", "new": None}})
    message = str(error.value)
    assert "model.lr: 1e-05 -> 0.1" in message
    assert "model.new: (absent) -> None" in message
    assert "seed" not in message.split("Either")[0]
    assert "force=[model]" in message
    assert "judge, table" in message
    assert "name=..." in message


def test_an_unfinished_stage_is_stale_too(run: Run) -> None:
    """Checkpoints of other settings must not be resumed."""
    run.open(run["data"], SETTINGS)
    with pytest.raises(StaleStage, match="was begun with other settings"):
        run.open(run["data"], {**SETTINGS, "seed": 1})


def test_a_growing_stage_is_reopened(run: Run) -> None:
    """Evaluation gets new systems: it goes on in the same folder instead of being stale."""
    finish(run, "table", {"seed": 0, "systems": ["a"]})
    run.check(run["table"], {"seed": 0, "systems": ["a"]})
    assert run.done("table")
    run.check(run["table"], {"seed": 0, "systems": ["a", "b"]})
    assert run.done("table") is None
    assert (run.path("table") / "config.yaml").exists()


def test_forcing_a_stage_invalidates_the_later_ones(run: Run) -> None:
    """What builds on a stage that is redone, directly or not, is redone with it; what does not stays."""
    for name in ("data", "model", "judge", "table"):
        finish(run, name)
    assert [stage.name for stage in run.reset(run["model"])] == ["model", "judge", "table"]
    assert run.done("data")
    assert not run.path("judge").exists()


def test_a_second_driver_is_told_the_first_ones_pid(run: Run) -> None:
    """Two drivers in one folder would mix their files. The lock is the kernel's: it ends with the process."""
    code = "import sys, time; from pathlib import Path; from boostapr.runs import Run\n"
    code += f"Run(Path({str(run.folder)!r}), ()).lock(); print('locked', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunLocked, match=f"process {other.pid}"):
            run.lock()
    finally:
        other.kill()
        other.wait()
    run.lock()
    assert (run.folder / ".lock").read_text() == f"{os.getpid()}\n"
    run.unlock()


# -- files --------------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=10), max_size=3), max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, more=ROWS, data=st.data())
def test_a_cut_file_goes_on_behind_its_last_whole_row(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    more: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    """Cut anywhere: the rows that are whole stay, a resumed writer adds behind them, nothing is glued or lost."""
    path = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.write(row)
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    # A row is whole if all of it but its newline is there.
    ends = [
        len("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows[: n + 1]).encode()) for n in range(len(rows))
    ]
    whole = sum(end - 1 <= cut for end in ends)
    assert read_jsonl(path) == rows[:whole]
    with JsonlWriter(path) as writer:
        assert writer.rows == rows[:whole]
        for row in more:
            writer.write(row)
    assert read_jsonl(path) == rows[:whole] + more


@pytest.mark.parametrize("content", [b'{"a": 1}\nnonsense\n{"a": 2}\n', b"[1]\n"])
def test_a_broken_row_is_named(tmp_path: Path, content: bytes) -> None:
    """Only a last line may be cut; anything else is damage, and the message says where."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rows\.jsonl, line [12]"):
        read_jsonl(path)


def test_atomic_writes_leave_the_old_file_on_failure(tmp_path: Path) -> None:
    """Never half a file, and no scratch files either."""
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_atomic(path, 3)  # type: ignore[arg-type]  # that it fails is the point
    assert json.loads(path.read_text()) == {"a": 1}
    assert [found.name for found in path.parent.iterdir()] == ["x.json"]


def steps(folder: Path) -> Sequence[int]:
    return [row["step"] for row in read_jsonl(folder / "metrics.jsonl")]


def test_metrics_resume_without_doubled_steps(tmp_path: Path) -> None:
    """Killed at step 7 with a checkpoint at 5: the lines of 6 and 7 go, and the cut one, before they are written again."""
    with MetricsWriter(tmp_path) as metrics:
        for step in range(1, 8):
            metrics.log(step, {"loss": 1 / step, "bad": float("inf")})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    with MetricsWriter(tmp_path, resume_step=5) as metrics:
        assert list(steps(tmp_path)) == [1, 2, 3, 4, 5]
        metrics.log(6, {"loss": 0.1})
    assert list(steps(tmp_path)) == [1, 2, 3, 4, 5, 6]
    assert read_jsonl(tmp_path / "metrics.jsonl")[0]["bad"] is None
    assert list((tmp_path / "tensorboard").glob("events.*"))
