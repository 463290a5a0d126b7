"""Every system on the test splits: pass@1 by greedy decoding, pass@k over samples, graded strictly (section 4.1).

    boostapr evaluate experiment=demo                      # all systems of evaluate.run
    boostapr evaluate experiment=demo system=[sft,gold]    # = python -m stages.evaluate ...: only these

Reads the models of the run folder. Writes, for each system and split, eval/<system>/<split>/responses.jsonl (what the
policy said), results.jsonl (every answer with its outcome), both as they come, and summary.json.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from boostapr.config import flatten
from boostapr.errors import UserError
from boostapr.files import JsonlWriter, write_atomic, write_json
from boostapr.outcomes import Status
from boostapr.prompts import PROMPT_VERSION
from boostapr.runs import StageRun
from envs.policies.fixed import gold, noop, predictions
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
class Contestant:
    """A system: its settings, how to open its policy, and a digest of what it answers from (a model, a file; or "")."""

    name: str
    system: SystemSettings
    open_policy: PolicyOpener
    source: str


@dataclass(frozen=True)
class Job:
    """One system on one split."""

    contestant: Contestant
    split: str
    instances: Sequence[BugInstance]
    folder: Path

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def system(self) -> SystemSettings:
        return self.contestant.system

    def finished(self) -> bool:
        """Every answer has its verdict; where the machine failed to give one, the job is taken up again."""
        summary = self.folder / "summary.json"
        if not summary.exists():
            return False
        record = json.loads(summary.read_text())
        return Status.INFRA not in {**record["statuses"], **record.get("statuses_sampled", {})}


def run(
    settings: EvaluateSettings,
    contestants: Sequence[Contestant],
    splits: Splits,
    judge: Judge,
    sandbox: SandboxSettings,
    made_with: Mapping[str, Any],
    folder: Path,
) -> None:
    """Answer, execute, summarise.

    judge: holds the reward models, loaded when needed. made_with: the seed, and whatever else the results depend on beside
    `settings`; it is recorded with them.
    """
    for split, instances in splits.items():
        write_rows(folder / "instances" / f"{split}.jsonl", [to_json(instance) for instance in instances])
    with Grader(sandbox) as grader:
        for contestant in contestants:
            jobs = [Job(contestant, split, some, folder / contestant.name / split) for split, some in splits.items()]
            for job in jobs:
                check_same(job, settings, made_with)
            jobs = [job for job in jobs if not job.finished()]
            generate(settings, jobs, contestant.open_policy, made_with["seed"])
            for job in jobs:
                grader.submit(job, chosen(job, judge))


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


def chosen(job: Job, judge: Judge) -> list[Answer]:
    """The answers of a system to a split, in order, with credit if it is to be stored."""
    with ResponseLog(job.folder / "responses.jsonl") as log:
        stored = log.responses
    ids = [instance.instance_id for instance in job.instances]
    if job.system.policy == "rerank":
        return rerank(stored, ids, job.system.num_samples, judge)
    answers = collect(stored, ids)
    return judge.with_credit(answers) if job.system.credit else answers


class Grader:
    """Executes answers in the background, job after job, while the next system is generating: that takes one core, and
    executing mostly another. Leaving the block waits for all jobs, unless an exception goes through it: then it stops.
    """

    def __init__(self, sandbox: SandboxSettings) -> None:
        self._sandbox = sandbox
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grader")
        self._jobs: list[Future[None]] = []
        self._stop = threading.Event()

    def submit(self, job: Job, answers: Sequence[Answer]) -> None:
        """Queue a job. Raises what an earlier one has failed with."""
        for earlier in self._jobs:
            if earlier.done():
                earlier.result()
        self._jobs.append(self._thread.submit(self._grade, job, answers))

    def _grade(self, job: Job, answers: Sequence[Answer]) -> None:
        """Execute each answer as the policy wrote it, write its row as it comes, and the summary in the end."""
        by_id = {instance.instance_id: instance for instance in job.instances}
        with JsonlWriter(job.folder / "results.jsonl") as out:
            rows = {(row["instance_id"], row["mode"], row["sample"]): row for row in graded(out.rows)}
            todo = [answer for answer in answers if answer.key not in rows]
            items = [(by_id[answer.instance_id], answer.response.data) for answer in todo]
            for index, outcome in run_many(self._sandbox, items, f"executing the answers of {job.name} on {job.split}"):
                row = result_row(todo[index], by_id[todo[index].instance_id], outcome)
                rows[todo[index].key] = row
                out.write(row)
                if self._stop.is_set():
                    return
        final = [rows[answer.key] for answer in answers]
        write_rows(job.folder / "results.jsonl", final)
        summary = {"system": job.name, "split": job.split, **summarize(final, list(by_id), job.system.num_samples)}
        write_json(job.folder / "summary.json", summary)
        result = f"{summary['resolved']} of {summary['n']} resolved ({summary['pass@1']:.1%})"
        print(f"{job.name} on {job.split}: {result}", flush=True)

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for job in self._jobs:
                job.result()


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
        "source": job.contestant.source,
        "instances": hashlib.sha256(json.dumps([to_json(i) for i in job.instances]).encode()).hexdigest(),
    }
    if job.system.credit or job.system.policy == "rerank":
        now["credit"] = settings.credit.model_dump(mode="json")
    before = yaml.safe_load(path.read_text()) if path.exists() else now
    if before != now:
        first, second = flatten(before), flatten(now)
        keys = sorted(key for key in {*first, *second} if first.get(key) != second.get(key))
        raise UserError(
            f"{job.folder} was made with other settings ({', '.join(keys)}). Remove that folder to evaluate `{job.name}` "
            "again, go back to those settings, or start a new run with `name=...`."
        )
    write_atomic(path, yaml.safe_dump(now, sort_keys=False))


def contestant(name: str, settings: EvaluateSettings, vllm: VLLMSettings, find: Callable[[str], Path]) -> Contestant:
    """The system of that name, ready to answer; `find` gives the path of a model of the run folder.

    Raises:
        UserError: there is no such system, or its predictions file cannot be used; or what `find` raises.
    """
    if name not in settings.systems:
        raise UserError(f"`system`: there is no system `{name}`; there are: {', '.join(settings.systems)}.")
    system = settings.systems[name]
    if system.policy in ("gold", "noop"):
        fixed = gold() if system.policy == "gold" else noop()
        return Contestant(name, system, lambda seed: fixed, "")
    if system.policy == "predictions":
        if system.path is None:
            raise UserError(f"System `{name}` answers from a file: name it with `evaluate.systems.{name}.path=FILE`.")
        stored = predictions(system.path)
        return Contestant(name, system, lambda seed: stored, digest([system.path]))
    model = find(system.run_model) if system.run_model else Path(model_path(str(system.model)))
    files = sorted(model.glob("*.safetensors")) + sorted(model.glob("tokenizer*.json"))
    return Contestant(
        name,
        system,
        lambda seed: VLLMPolicy(str(model), vllm, "patch", settings.template, seed, f"answers of {name}"),
        digest(files),
    )


def digest(files: Sequence[Path]) -> str:
    """sha256 over names, sizes, and the first and last mebibyte of each file: enough to tell two trainings apart, quickly."""
    state = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            state.update(f"{path.name} {size} ".encode() + file.read(2**20))
            file.seek(max(0, size - 2**20))
            state.update(file.read())
    return state.hexdigest()


def main(config: Config, stage: StageRun) -> bool:
    """Returns whether every system of `evaluate.run` is evaluated now: if not, the stage stays unfinished."""
    settings = config.evaluate
    names = settings.run if config.system == "all" else config.system
    contestants = [contestant(name, settings, config.vllm, stage.input) for name in names]
    splits = {split.split: load_split(config.benchmark, split) for split in settings.splits}

    def load_reward_models() -> Scorer:
        from reward_models.scorer import RewardScorer  # torch and transformers: not for systems that need no model

        return RewardScorer.load(
            stage.input(settings.credit.r_seq), stage.input(settings.credit.r_line), settings.credit.batch_size
        )

    judge = Judge(load_reward_models, settings.credit)
    used = flatten(config.model_dump(mode="json", include={"seed", "vllm", "sandbox"}))
    made_with = {key: value for key, value in used.items() if key not in LOCAL}
    run(settings, contestants, splits, judge, config.sandbox, made_with, stage.folder)
    return all((stage.folder / name / split / "summary.json").exists() for name in settings.run for split in splits)


if __name__ == "__main__":
    stage_main("evaluate", main)
