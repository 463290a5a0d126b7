"""Fixtures of the stages' tests: a tiny random model, a few microbugs, a stage folder, a real sandbox."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage_tools import make_model

from boostapr.config import compose, resolved
from boostapr.runs import Run, Stage, StageRun
from envs.benchmarks.microbugs.generate import generate
from envs.sandboxes import SandboxSettings
from envs.tasks import BugInstance
from stages.settings import CandidateSettings, DemonstrationSettings, EvaluateSettings, SFTSettings


@pytest.fixture(scope="session")
def bugs() -> list[BugInstance]:
    """Six instances of the train split's kind."""
    return list(generate("train", 11, 6))


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, bugs: list[BugInstance]) -> Path:
    """A random Qwen2 with a tokenizer made from the bugs."""
    return make_model(tmp_path_factory.mktemp("model"), bugs)


@pytest.fixture
def open_stage(tmp_path: Path) -> Callable[[str], StageRun]:
    """A stage of a run in a temporary folder; opened again, it continues there."""

    def open_(name: str) -> StageRun:
        stage = Stage(name, folder=name, title=name, needs=(), settings=())
        return Run(tmp_path / "run", [stage]).open(stage, {})

    return open_


def section(name: str) -> Any:
    """A section of the demo's configuration as plain values."""
    return resolved(compose(["experiment=demo"]))[name]


@pytest.fixture
def demonstration_settings() -> DemonstrationSettings:
    return DemonstrationSettings.model_validate(section("demonstrations") | {"num_attempts": 2})


@pytest.fixture
def candidate_settings() -> CandidateSettings:
    reward = {"w_apply": 0.2, "w_test": 0.8, "gamma_diff": 1.0, "eta": 0.002, "r_max": 0.2}
    return CandidateSettings.model_validate(section("candidates") | {"num_candidates": 4, "execution_reward": reward})


@pytest.fixture
def evaluate_settings() -> EvaluateSettings:
    values = section("evaluate")
    for system in values["systems"].values():
        system["num_samples"] = 0 if system["policy"] in ("gold", "noop", "predictions") else 4
    return EvaluateSettings.model_validate(values)


@pytest.fixture
def sft_settings(model_dir: Path) -> SFTSettings:
    values = section("sft")
    small = {
        "model": str(model_dir),
        "max_length": 1024,
        "patch_examples": 1.0,
        "trace_examples": 1.0,
        "validation_share": 0.0,
        "num_epochs": 2,
        "batch_size": 4,
        "micro_batch_size": 4,
        "learning_rate": 3e-3,
        "warmup_steps": 2,
        "num_threads": 1,
        "checkpoint_steps": 3,
        "logging_steps": 1,
    }
    return SFTSettings.model_validate(values | small)


@pytest.fixture(scope="session")
def sandbox() -> SandboxSettings:
    """The real process sandbox, one worker, no cache of results."""
    return SandboxSettings(
        backend="process",
        workers=1,
        timeout_s=20,
        memory_mb=512,
        disk_mb=16,
        max_processes=16,
        max_open_files=64,
        output_limit_bytes=8192,
        infra_retries=0,
        retry_backoff_s=0,
        cache=None,
        readable=(),
        namespaces=True,
        landlock=True,
        seccomp=True,
    )
