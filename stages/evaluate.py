"""Every system on the test splits: pass@1 by greedy decoding, pass@k over samples, graded strictly (section 4.1).

    boostapr evaluate experiment=demo                      # all systems of evaluate.run
    boostapr evaluate experiment=demo system=[sft,gold]    # = python -m stages.evaluate ...: only these

Reads the models of the run folder. Writes, for each system and split, eval/<system>/<split>/responses.jsonl (what the
policy said), results.jsonl (every answer with its outcome), both as they come, and summary.json.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from boostapr.config import flatten
from boostapr.errors import UserError
from boostapr.files import JsonlWriter, write_atomic, write_json
from boostapr.prompts import PROMPT_VERSION
from boostapr.runs import StageRun
from envs.policies.fixed import FixedPolicy, gold, noop, predictions
from envs.policies.vllm_engine import VLLMPolicy, VLLMSettings
from envs.sandboxes import SandboxSettings, run_many
from envs.tasks import BugInstance, to_json
from stages.answers import FIRST, SAMPLED, Answer, Judge, Scorer, collect, rerank, result_row, summarize
from stages.chain import LOCAL, stage_main
from stages.common import PolicyOpener, ResponseLog, ask, graded, load_split, model_path, request_missing, write_rows
from stages.config import Config
from stages.settings import EvaluateSettings, SystemSettings

Splits = Mapping[str, Sequence[BugInstance]]


@dataclass(frozen=True)
class Job:
    """One system on one split."""

    name: str
    system: SystemSettings
    split: str
    instances: Sequence[BugInstance]
    folder: Path


def run(
    settings: EvaluateSettings,
    names: Sequence[str],
    splits: Splits,
    open_policy: Mapping[str, PolicyOpener],
    judge: Judge,
    sandbox: SandboxSettings,
    made_with: Mapping[str, Any],
    folder: Path,
) -> None:
    """Answer, execute, summarise.

    open_policy: by system name. judge: holds the reward models, loaded when needed. made_with: the seed, and whatever else
    the results depend on beside `settings`; it is recorded with them.
    """
    for split, instances in splits.items():
        write_rows(folder / "instances" / f"{split}.jsonl", [to_json(instance) for instance in instances])
    for name in names:
        system = settings.systems[name]
        jobs = [Job(name, system, split, instances, folder / name / split) for split, instances in splits.items()]
        for job in jobs:
            check_same(job, settings, made_with)
        generate(settings, jobs, open_policy[name], made_with["seed"])
        for job in jobs:
            grade(settings, job, judge, sandbox)


def generate(settings: EvaluateSettings, jobs: Sequence[Job], open_policy: PolicyOpener, seed: int) -> None:
    """Ask one policy for all that is missing in all splits, so that its engine starts once."""
    logs = [ResponseLog(job.folder / "responses.jsonl") for job in jobs]
    try:
        requests = []
        for job, log in zip(jobs, logs, strict=True):
            if job.system.pool_sampling is not None and job.system.pool_size is not None:
                requests += request_missing(log, job.instances, SAMPLED, job.system.pool_size, job.system.pool_sampling)
                continue
            requests += request_missing(log, job.instances, FIRST, 1, settings.first)
            requests += request_missing(log, job.instances, SAMPLED, job.system.num_samples, settings.sampled)
        ask(open_policy, seed, requests)
    finally:
        for log in logs:
            log.close()


def grade(settings: EvaluateSettings, job: Job, judge: Judge, sandbox: SandboxSettings) -> None:
    """Execute the answers of one system to one split, each as the policy wrote it, and write the summary."""
    with ResponseLog(job.folder / "responses.jsonl") as log:
        stored = log.responses
    path = job.folder / "results.jsonl"
    by_id = {instance.instance_id: instance for instance in job.instances}
    with JsonlWriter(path) as out:
        rows = {(row["instance_id"], row["mode"], row["sample"]): row for row in graded(out.rows)}
        if job.system.policy == "rerank":
            answers = rerank(stored, list(by_id), job.system.num_samples, judge)
        else:
            answers = collect(stored, list(by_id))
        todo: list[Answer] = [answer for answer in answers if answer.key not in rows]
        if job.system.credit:
            todo = judge.with_credit(todo)
        items = [(by_id[answer.instance_id], answer.response.data) for answer in todo]
        for index, outcome in run_many(sandbox, items, f"executing the answers of {job.name} on {job.split}"):
            row = result_row(todo[index], by_id[todo[index].instance_id], outcome)
            rows[todo[index].key] = row
            out.write(row)
    final = [rows[answer.key] for answer in answers]
    write_rows(path, final)
    summary = {"system": job.name, "split": job.split, **summarize(final, list(by_id), job.system.num_samples)}
    write_json(job.folder / "summary.json", summary)
    print(
        f"{job.name} on {job.split}: {summary['resolved']} of {summary['n']} resolved ({summary['pass@1']:.1%})",
        flush=True,
    )


def check_same(job: Job, settings: EvaluateSettings, made_with: Mapping[str, Any]) -> None:
    """Leave config.yaml beside the results of a job, and make sure that what is there already was made the same way.

    Raises:
        UserError: it was not; says what differs. Systems come and go in a run folder, so each has its own record.
    """
    path = job.folder / "config.yaml"
    now = {
        "system": job.system.model_dump(mode="json"),
        "first": settings.first.model_dump(mode="json"),
        "sampled": settings.sampled.model_dump(mode="json"),
        "template": settings.template,
        "prompt_version": PROMPT_VERSION,
        **made_with,
        "instances": hashlib.sha256("".join(instance.digest for instance in job.instances).encode()).hexdigest(),
    }
    if job.system.credit or job.system.policy == "rerank":
        now["credit"] = settings.credit.model_dump(mode="json")
    if job.system.path is not None:
        now["predictions"] = hashlib.sha256(job.system.path.read_bytes()).hexdigest()
    before = yaml.safe_load(path.read_text()) if path.exists() else now
    if before != now:
        first, second = flatten(before), flatten(now)
        keys = sorted(key for key in {*first, *second} if first.get(key) != second.get(key))
        raise UserError(
            f"{job.folder} was made with other settings ({', '.join(keys)}). Remove that folder to evaluate `{job.name}` "
            "again, go back to those settings, or start a new run with `name=...`."
        )
    write_atomic(path, yaml.safe_dump(now, sort_keys=False))


def opener(
    name: str, system: SystemSettings, settings: EvaluateSettings, vllm: VLLMSettings, stage: StageRun
) -> PolicyOpener:
    """How to open the policy of a system.

    Raises:
        MissingInput: its model is made by a stage that has not run.
        UserError: its predictions file cannot be used.
    """
    fixed: FixedPolicy | None = None
    if system.policy == "gold":
        fixed = gold()
    elif system.policy == "noop":
        fixed = noop()
    elif system.policy == "predictions":
        if system.path is None:
            raise UserError(f"System `{name}` answers from a file: name it with `evaluate.systems.{name}.path=FILE`.")
        fixed = predictions(system.path)
    if fixed is not None:
        return lambda seed: fixed
    model = stage.input(system.run_model) if system.run_model else model_path(str(system.model))
    return lambda seed: VLLMPolicy(model, vllm, "patch", settings.template, seed, f"answers of {name}")


def main(config: Config, stage: StageRun) -> bool:
    """Returns whether every system of `evaluate.run` is evaluated now: if not, the stage stays unfinished."""
    settings = config.evaluate
    names = settings.run if config.system == "all" else config.system
    check_names(names, settings)
    splits = {split.split: load_split(config.benchmark, split) for split in settings.splits}

    def load_reward_models() -> Scorer:
        from reward_models.scorer import RewardScorer  # torch and transformers: not for systems that need no model

        return RewardScorer.load(
            stage.input(settings.credit.r_seq), stage.input(settings.credit.r_line), settings.credit.batch_size
        )

    openers = {name: opener(name, settings.systems[name], settings, config.vllm, stage) for name in names}
    judge = Judge(load_reward_models, settings.credit)
    used = flatten(config.model_dump(mode="json", include={"seed", "vllm", "sandbox"}))
    made_with = {key: value for key, value in used.items() if key not in LOCAL}
    run(settings, names, splits, openers, judge, config.sandbox, made_with, stage.folder)
    return all((stage.folder / name / split / "summary.json").exists() for name in settings.run for split in splits)


def check_names(names: Sequence[str], settings: EvaluateSettings) -> None:
    """Raises UserError for a system that conf/evaluate does not have."""
    for name in names:
        if name not in settings.systems:
            raise UserError(f"`system`: there is no system `{name}`; there are: {', '.join(settings.systems)}.")


if __name__ == "__main__":
    stage_main("evaluate", main)
