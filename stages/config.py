"""The root configuration: one model, composed from `conf/`, that every stage and the pipeline read.

Each section is defined beside the code that it configures; here they come together.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from boostapr.config import RepoPath, Settings
from boostapr.credit import CreditSettings
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings
from envs.policies.vllm_engine import VLLMSettings
from envs.sandboxes.settings import SandboxSettings
from reward_models.settings import RewardSettings
from stages.settings import BenchmarkSettings, CandidateSettings, DemonstrationSettings, EvaluateSettings, SFTSettings


class MachineSettings(Settings):
    """What a run needs before it starts; checked at start-up, before any long work.

    `requirements` are the files of the tested set of package versions. Memory and disk are in GiB.
    """

    memory_gb: float = Field(gt=0)
    disk_gb: float = Field(gt=0)
    requirements: tuple[RepoPath, ...]


class Config(Settings):
    """One run; its folder is `runs`/`name`.

    force: finished stages to redo, or "all". policy: the folder of what stage III trains. rivals: further policies, each
    with the settings that make it: they are trained after `policy`, in folders of their own. system: which systems of
    `evaluate.run` to evaluate.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,-]*$")
    runs: Path
    seed: int = Field(ge=0, lt=2**32)
    force: list[str] | Literal["all"]
    policy: str = Field(pattern=r"^[a-z0-9_]+$")
    rivals: dict[str, dict[str, str | int | float]]
    system: list[str] | Literal["all"]
    machine: MachineSettings
    benchmark: BenchmarkSettings
    sandbox: SandboxSettings
    vllm: VLLMSettings
    demonstrations: DemonstrationSettings
    sft: SFTSettings
    candidates: CandidateSettings
    reward: RewardSettings
    credit: CreditSettings
    ppo: PPOSettings
    verl: VerlSettings
    evaluate: EvaluateSettings
