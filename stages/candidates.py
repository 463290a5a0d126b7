"""Stage II, first part: K candidates a bug from the SFT policy, executed and scored (section 3.3.1, Eq. 3).

    boostapr candidates experiment=demo        # python -m stages.candidates experiment=demo

Reads the train split and sft/model. Writes responses.jsonl (what the policy said) and candidates.jsonl (each with its
outcome and r*), both as they come. A candidate that the machine failed to grade has no reward (null).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from boostapr.errors import UserError
from boostapr.files import JsonlWriter
from boostapr.outcomes import Outcome, Status
from boostapr.patches import parse_patch
from boostapr.rewards import execution_reward
from boostapr.runs import StageRun
from envs.policies import Response
from envs.policies.vllm_engine import VLLMPolicy
from envs.sandboxes import SandboxSettings, run_many
from envs.tasks import BugInstance
from stages.chain import stage_main
from stages.common import (
    PolicyOpener,
    ResponseLog,
    ask,
    graded,
    load_split,
    request_missing,
    status_shares,
    write_rows,
)
from stages.config import Config
from stages.settings import CandidateSettings


def run(
    settings: CandidateSettings,
    instances: Sequence[BugInstance],
    open_policy: PolicyOpener,
    sandbox: SandboxSettings,
    seed: int,
    stage: StageRun,
) -> None:
    """Sample, score."""
    by_id = {instance.instance_id: instance for instance in instances}
    with ResponseLog(stage.folder / "responses.jsonl") as log:
        ask(open_policy, seed, request_missing(log, instances, "sampled", settings.num_candidates, settings.sampling))
        responses = {(i, k): log.responses[i, "sampled", k] for i in by_id for k in range(settings.num_candidates)}
    usable = {key: response for key, response in responses.items() if response.finish != "prompt_too_long"}
    if not usable:
        raise UserError("Every prompt is longer than the context: nothing was sampled. Raise `vllm.max_model_len`.")

    path = stage.folder / "candidates.jsonl"
    with JsonlWriter(path) as out:
        rows = {(row["instance_id"], row["k"]): row for row in graded(out.rows)}
        todo = [key for key in usable if key not in rows]
        items = [(by_id[key[0]], usable[key].data) for key in todo]
        for index, outcome in run_many(sandbox, items, "executing the candidates"):
            row = candidate_row(by_id[todo[index][0]], todo[index][1], usable[todo[index]], outcome, settings)
            rows[todo[index]] = row
            out.write(row)
    final = [rows[key] for key in usable]
    write_rows(path, final)

    values = summary(final, len(responses) - len(usable))
    with stage.metrics() as metrics:
        metrics.log(0, values)
    print(
        f"{len(final)} candidates of {len(by_id)} bugs: {values['resolved']:.1%} resolved, mean r* {values['reward/mean']:.3f}"
    )
    stage.finish(**values)


def candidate_row(
    instance: BugInstance, k: int, response: Response, outcome: Outcome, settings: CandidateSettings
) -> dict[str, Any]:
    """One line of candidates.jsonl."""
    reward: dict[str, float | None] = {"r_env": None, "r_diff": None, "total": None}
    if outcome.status is not Status.INFRA:  # it says nothing about the patch
        patch = parse_patch(response.data)
        reward = dict(execution_reward(outcome, patch, instance.required_tests, settings.execution_reward).to_dict())
    row = {"instance_id": instance.instance_id, "k": k, **response.to_row()}
    return {**row, "outcome": outcome.to_dict(), "reward": reward}


def summary(rows: Sequence[dict[str, Any]], num_dropped: int) -> dict[str, float]:
    """What the candidates are like; `mixed` is the share of bugs whose candidates have different r* (they make pairs)."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        if row["reward"]["total"] is not None:
            rewards.setdefault(row["instance_id"], []).append(row["reward"]["total"])
    every = [value for values in rewards.values() for value in values]
    if not every:
        raise UserError("The machine could not grade a single candidate; look at `outcome.detail` in candidates.jsonl.")
    return {
        "candidates": len(rows),
        "dropped_prompt_too_long": num_dropped,
        "resolved": float(np.mean([row["outcome"]["status"] == Status.RESOLVED for row in rows])),
        "truncated": float(np.mean([row["finish"] == "length" for row in rows])),
        "tokens/mean": float(np.mean([row["num_tokens"] for row in rows])),
        "reward/mean": float(np.mean(every)),
        "mixed": float(np.mean([len(set(values)) > 1 for values in rewards.values()])),
        **status_shares([row["outcome"]["status"] for row in rows]),
    }


def main(config: Config, stage: StageRun) -> None:
    settings = config.candidates
    model = stage.input(settings.model)
    run(
        settings,
        load_split(config.benchmark, settings.data),
        lambda seed: VLLMPolicy(model, config.vllm, "patch", settings.template, seed, "sampling candidates"),
        config.sandbox,
        config.seed,
        stage,
    )


if __name__ == "__main__":
    stage_main("candidates", main)
