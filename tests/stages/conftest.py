"""Fixtures of the stages' tests: a tiny random model, a few microbugs, a stage folder, a real sandbox."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from stage_tools import make_model

from boostapr.config import CONF
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


def section(name: str, sft_model: str = "unset") -> Any:
    """A section of the demo's configuration as plain values."""
    root = OmegaConf.create(
        {"sft": {"model": sft_model, "template": "compact"}, name: OmegaConf.load(CONF / name / "demo.yaml")}
    )
    return OmegaConf.to_container(root, resolve=True)[name]


@pytest.fixture
def demonstration_settings() -> DemonstrationSettings:
    return DemonstrationSettings.model_validate(section("demonstrations"))


@pytest.fixture
def candidate_settings() -> CandidateSettings:
    return CandidateSettings.model_validate(section("candidates"))


@pytest.fixture
def evaluate_settings() -> EvaluateSettings:
    return EvaluateSettings.model_validate(section("evaluate"))


@pytest.fixture
def sft_settings(model_dir: Path) -> SFTSettings:
    values = OmegaConf.to_container(OmegaConf.load(CONF / "sft" / "demo.yaml"))
    small = {"model": str(model_dir), "num_epochs": 2, "batch_size": 4, "micro_batch_size": 4, "warmup_steps": 2}
    small |= {
        "learning_rate": 3e-3,
        "validation_share": 0.0,
        "checkpoint_steps": 3,
        "logging_steps": 1,
        "num_threads": 1,
    }
    return SFTSettings.model_validate(values | small)  # type: ignore[operator]  # a mapping, as every file in conf/ is


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
