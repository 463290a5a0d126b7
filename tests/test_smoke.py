"""The whole pipeline in miniature on the real stack: killed in the middle of stage III, started again, complete."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from boostapr import supervise
from boostapr.config import ROOT
from boostapr.files import read_jsonl


def wait_for(condition: Callable[[], object], driver: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert driver.poll() in (None, -9), "the pipeline ended before it was to be killed"
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.2)


@pytest.mark.integration
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    "BOOSTAPR_SMOKE" not in os.environ,
    reason="the whole pipeline twice takes long: set BOOSTAPR_SMOKE=1, or `make smoke`",
)
def test_the_demo_in_miniature_survives_a_kill(tmp_path: Path) -> None:
    """SIGKILL to the driver after a PPO step: nothing is left running, and the same command completes the table."""
    command = [sys.executable, "-m", "stages.pipeline", "experiment=smoke", f"runs={tmp_path}"]
    run = tmp_path / "smoke"
    metrics = run / "ppo" / "metrics.jsonl"
    driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        wait_for(lambda: metrics.exists() and any(row["step"] >= 1 for row in read_jsonl(metrics)), driver, 1800)
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not supervise._labelled(str(run.resolve())), driver, 120)
    finished = (run / "sft" / "done.json").read_text()

    assert subprocess.run(command, cwd=ROOT).returncode == 0
    assert supervise._labelled(str(run.resolve())) == []
    assert (run / "sft" / "done.json").read_text() == finished  # what was finished was not done again
    assert json.loads((run / "ppo" / "done.json").read_text())["resumed"] is True
    steps = [row["step"] for row in read_jsonl(metrics)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 2
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["systems"]) >= {"base", "sft", "rerank", "boostapr"}
    for system in summary["systems"].values():
        for split in ("test", "test_ood"):
            assert system[split]["n"] == 6
            assert 0 <= system[split]["pass@1"] <= 1
    assert {"sft_vs_base", "boostapr_vs_sft"} <= set(summary["comparisons"])
    assert (run / "report" / "index.html").stat().st_size > 10_000
