"""A PPO run on a random tiny model with a scorer of its own, as a program: the integration tests start, kill and resume it.

    python tests/verl_plugin/tiny_run.py FOLDER SPEC.json

FOLDER gets policy/, rows and ppo/. SPEC holds overrides: {"ppo": {...}, "verl": {...}, "patches": true} (the last: the
policy has learned to write patches).
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import CREDIT, paths, ppo, verl
from tiny_model import make_policy, make_rows

from boostapr.credit import units
from boostapr.patches import parse_patch
from boostapr.verl_plugin.export import export_policy
from boostapr.verl_plugin.task_runner import PPOJob, train


@dataclass(frozen=True)
class Score:
    """What the reward server returns."""

    seq: float
    units: list[float]


class DigitScorer:
    """Likes digits, so that a policy has something to learn; the later edits of a patch are the better ones."""

    async def score(self, responses: list[bytes]) -> list[Score]:
        await asyncio.sleep(0)
        return [self._score(response) for response in responses]

    def _score(self, response: bytes) -> Score:
        edits = units(parse_patch(response), CREDIT["granularity"])
        return Score(
            sum(byte in b"0123456789" for byte in response) / max(1, len(response)),
            [float(i) for i in range(len(edits))],
        )


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


def main(folder: Path, spec: dict[str, Any]) -> None:
    """Train, then export."""
    policy = folder / "policy"
    if not policy.exists():
        make_policy(policy, writes_patches=spec.get("patches", False))
        make_rows(folder / "train.jsonl", "train", 16, execute=spec["ppo"].get("execute_rollouts", False))
        make_rows(folder / "dev.jsonl", "dev", 4, execute=True)
    job = PPOJob(ppo(**spec["ppo"]), verl(**spec["verl"]), CREDIT, paths(folder), start_services, lambda handles: None)
    last = train(job)
    export_policy(last.path, policy, folder / "ppo" / "model")


if __name__ == "__main__":
    from boostapr import supervise

    supervise.raise_on_signals()
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
