"""A PPO run on a random tiny model with a scorer of its own, as a program: the integration tests start, kill and resume it.

    python tests/verl_plugin/tiny_run.py FOLDER SPEC.json

FOLDER gets policy/, rows and ppo/. SPEC holds overrides: {"ppo": {...}, "verl": {...}, "credit": {...}}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tiny_model import make_policy, make_rows

from boostapr.config import CONF
from boostapr.verl_plugin.export import export_policy
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings
from boostapr.verl_plugin.task_runner import PPOJob, train
from boostapr.verl_plugin.verl_config import RunPaths

CREDIT = {
    "algorithm": "boostapr",
    "tau": 0.5,
    "granularity": "edit_line",
    "format_penalty": {"valid": 0.0, "recoverable": -0.4, "malformed": -1.0, "not_a_diff": -1.5},
}


@dataclass(frozen=True)
class Score:
    """What the reward server returns."""

    seq: float
    units: list[float]


class DigitScorer:
    """Likes digits, so that a policy has something to learn that no patch needs."""

    async def score(self, responses: list[bytes]) -> list[Score]:
        await asyncio.sleep(0)
        return [Score(sum(byte in b"0123456789" for byte in r) / max(1, len(r)), []) for r in responses]


class EvenExecutor:
    """Resolves every other instance."""

    async def execute(self, instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
        resolved = int(instance_id.rsplit("-", 1)[1]) % 2 == 0
        status = "resolved" if resolved else "tests_failed"
        return {"status": status, "tests": {"t::a": "passed" if resolved else "failed"}}, float(resolved)


def start_services() -> list[Any]:
    """The two named actors that agent loops look up."""
    import ray

    from boostapr.verl_plugin import agent_loop

    return [
        ray.remote(DigitScorer).options(name=agent_loop.SCORER, num_cpus=0).remote(),
        ray.remote(EvenExecutor).options(name=agent_loop.EXECUTOR, num_cpus=0).remote(),
    ]


def settings(section: str, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A file of conf/ with changes on top."""
    base = OmegaConf.create({"seed": 0, section: OmegaConf.load(CONF / section / f"{name}.yaml")})
    merged = OmegaConf.merge(base, {section: changes})
    resolved: dict[str, Any] = OmegaConf.to_container(merged, resolve=True)[section]  # type: ignore[index,call-overload,assignment]
    return resolved


def main(folder: Path, spec: dict[str, Any]) -> None:
    """Train, then export."""
    policy = folder / "policy"
    if not policy.exists():
        make_policy(policy)
        make_rows(folder / "train.jsonl", "train", 16, execute=False)
        make_rows(folder / "dev.jsonl", "dev", 4, execute=True)
    ppo = PPOSettings.model_validate(settings("ppo", "demo", spec["ppo"]))
    verl = VerlSettings.model_validate(settings("verl", "cpu", spec.get("verl", {})))
    paths = RunPaths(policy, folder / "train.jsonl", folder / "dev.jsonl", folder / "ppo")
    last = train(PPOJob(ppo, verl, CREDIT | spec.get("credit", {}), paths, start_services))
    export_policy(last.path, policy, folder / "ppo" / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
