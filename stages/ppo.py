"""Stage III: PPO on verl, with token rewards from R_seq spread over the edits by R_line (section 3.4, appendix B.3).

    boostapr ppo experiment=demo                        # = python -m stages.ppo experiment=demo
    boostapr ppo experiment=demo credit=r_seq policy=ppo_r_seq

Reads sft/model, reward/r_seq, reward/r_line and the train and dev splits. Writes model/ (the trained policy), checkpoints/,
metrics.jsonl and tensorboard/, verl.yaml (all that verl was told) and logs/ (what its processes said). Interrupted, it goes
on from the newest checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boostapr.credit import CreditSettings
from boostapr.files import read_jsonl, write_atomic
from boostapr.outcomes import Status
from boostapr.prompts import repair_messages
from boostapr.runs import StageRun
from boostapr.verl_plugin.export import export_policy
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings
from boostapr.verl_plugin.task_runner import PPOJob, train
from boostapr.verl_plugin.verl_config import RunPaths
from envs.sandboxes import BaseSandbox, SandboxSettings, open_sandbox
from envs.tasks import BugInstance
from reward_models.serving import start_reward_server
from reward_models.settings import ServingSettings
from stages.chain import stage_main
from stages.common import load_split
from stages.config import Config


def run(
    ppo: PPOSettings,
    verl: VerlSettings,
    credit: CreditSettings,
    serving: ServingSettings,
    sandbox: SandboxSettings,
    template: str,
    policy_dir: Path,
    r_seq_dir: Path,
    r_line_dir: Path | None,
    train_instances: Sequence[BugInstance],
    dev_instances: Sequence[BugInstance],
    output_dir: Path,
) -> dict[str, float]:
    """Train to the last planned step and export the policy to output_dir/model; returns the last validation's metrics.

    Raises:
        UserError: the settings, the files or the run do not allow it; the message says what to do.
    """
    paths = RunPaths(policy_dir, output_dir / "train_prompts.jsonl", output_dir / "dev_prompts.jsonl", output_dir)
    _write_prompts(paths.train_rows, train_instances, template, "train", ppo.execute_rollouts)
    _write_prompts(paths.dev_rows, dev_instances, template, "dev", execute=True)
    executed = [*dev_instances, *(train_instances if ppo.execute_rollouts else ())]

    def start_services() -> list[Any]:
        from boostapr.verl_plugin.agent_loop import EXECUTOR, SCORER

        rewards = start_reward_server(SCORER, r_seq_dir, r_line_dir, credit.granularity, serving)
        return [rewards, _start_executor(EXECUTOR, sandbox, executed)]

    def stop_services(handles: list[Any]) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # dead, or busy for ever: Ray's end is its end too
            ray.get(handles[1].close.remote(), timeout=2 * sandbox.timeout_s)

    last = train(PPOJob(ppo, verl, credit.model_dump(mode="json"), paths, start_services, stop_services))
    export_policy(last.path, policy_dir, output_dir / "model")
    validated = [row for row in read_jsonl(output_dir / "metrics.jsonl") if "val/dev/resolved" in row]
    first, final = validated[0], validated[-1]
    print(
        f"Bugs of dev resolved: {first['val/dev/resolved']:.1%} at step {first['step']}, {final['val/dev/resolved']:.1%} at step {final['step']}"
    )
    return {name: final[name] for name in final if name.startswith("val/")}


class SandboxActor:
    """The Ray actor that executes responses: `workers` sandboxes, opened when the first responses come."""

    def __init__(self, settings: SandboxSettings, instances: Mapping[str, BugInstance]) -> None:
        self._settings = settings
        self._instances = instances
        self._idle: asyncio.Queue[BaseSandbox | None] = asyncio.Queue()
        for _ in range(settings.workers):
            self._idle.put_nowait(None)

    async def execute(self, instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
        """`Outcome.to_dict()` and the share of required tests that passed (nan for an infra outcome)."""
        instance = self._instances[instance_id]
        sandbox = await self._idle.get()
        try:
            if sandbox is None:
                sandbox = await asyncio.to_thread(open_sandbox, self._settings)
            outcome = await asyncio.to_thread(sandbox.run, instance, response)
        finally:
            self._idle.put_nowait(sandbox)
        rate = math.nan if outcome.status is Status.INFRA else outcome.pass_rate(instance.required_tests)
        return outcome.to_dict(), rate

    async def close(self) -> None:
        """End the sandboxes' processes and remove their files."""
        for _ in range(self._settings.workers):
            sandbox = await self._idle.get()
            if sandbox is not None:
                await asyncio.to_thread(sandbox.close)


def _start_executor(name: str, settings: SandboxSettings, instances: Sequence[BugInstance]) -> Any:
    import ray

    actor = ray.remote(SandboxActor).options(name=name, num_cpus=0, max_concurrency=1000)
    return actor.remote(settings, {instance.instance_id: instance for instance in instances})


def _write_prompts(path: Path, instances: Sequence[BugInstance], template: str, source: str, execute: bool) -> None:
    """The rows of `verl_plugin.dataset.PromptDataset`."""
    rows = (
        {
            "instance_id": instance.instance_id,
            "messages": repair_messages(instance, "patch", template),
            "source": source,
            "execute": execute,
        }
        for instance in instances
    )
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main(config: Config, stage: StageRun) -> None:
    ppo = config.ppo
    metrics = run(
        ppo,
        config.verl,
        config.credit,
        config.reward.serving,
        config.sandbox,
        config.sft.template,
        stage.input(ppo.model),
        stage.input(ppo.r_seq),
        None if config.credit.algorithm == "r_seq" else stage.input(ppo.r_line),
        load_split(config.benchmark, ppo.data),
        load_split(config.benchmark, ppo.dev_data),
        stage.folder,
    )
    stage.finish(steps=ppo.num_steps, **metrics)


if __name__ == "__main__":
    stage_main("ppo", main)
