"""Running verl's PPO for one stage: Ray up, services up, verl's own `run_ppo`, everything down.

Extension point: `run_ppo(task_runner_class=...)`. Nothing of verl is imported before the session has set the environment,
because `import verl` chooses the platform.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boostapr.files import read_jsonl
from boostapr.verl_plugin.checkpoints import Checkpoint, latest_checkpoint, remove_incomplete
from boostapr.verl_plugin.session import ray_session
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings
from boostapr.verl_plugin.verl_config import RunPaths, check_with_verl, compose_verl_config


@dataclass(frozen=True)
class PPOJob:
    """One PPO run. credit: the dumped CreditSettings.

    start_services: called once Ray runs; starts the named actors `agent_loop.SCORER` and `agent_loop.EXECUTOR` and returns
    handles that must stay alive (an actor dies with its last handle). stop_services gets them when training is over, also
    after an error, while Ray still runs.
    """

    ppo: PPOSettings
    verl: VerlSettings
    credit: Mapping[str, Any]
    paths: RunPaths
    start_services: Callable[[], list[Any]]
    stop_services: Callable[[list[Any]], None]


def train(job: PPOJob) -> Checkpoint:
    """Run PPO to its last planned step, going on from the last complete checkpoint; returns the last checkpoint.

    Raises:
        ConfigError: the configuration does not fit verl, or its numbers do not fit each other.
        TrainingError, TokenMismatchError: see `trainer`, `tokens`.
    """
    folder = job.paths.checkpoints
    folder.mkdir(parents=True, exist_ok=True)
    remove_incomplete(folder)
    last = latest_checkpoint(folder)
    if last is None or last.step < job.ppo.num_steps:
        with ray_session(job.verl, job.paths.output / "logs"):
            _run_verl(job, last)
        last = latest_checkpoint(folder)
    assert last is not None
    return last


def _run_verl(job: PPOJob, resume: Checkpoint | None) -> None:
    from omegaconf import OmegaConf

    config = compose_verl_config(job.ppo, job.verl, job.credit, job.paths)
    if resume is None:
        config.trainer.resume_mode = "disable"
    else:
        config.trainer.resume_mode = "resume_path"
        config.trainer.resume_from_path = str(resume.path)
        config.trainer.val_before_train = False
    OmegaConf.save(config, job.paths.output / "verl.yaml")
    check_with_verl(config)
    from verl.trainer.main_ppo import run_ppo

    first = 0 if resume is None else resume.step
    with (
        _progress(job.paths.output / "metrics.jsonl", first, job.ppo.num_steps),
        ThreadPoolExecutor(1) as pool,
    ):
        services = pool.submit(job.start_services)  # they load models while verl does
        try:
            run_ppo(config, task_runner_class=_task_runner())
        except Exception as error:  # told to stop, we do not wait for services
            cause = services.exception() or _root_cause(error)
            _stop(job, services)
            raise cause from error
        _stop(job, services)
        services.result()


def _stop(job: PPOJob, services: Future[list[Any]]) -> None:
    if services.exception() is None:
        job.stop_services(services.result())


def _task_runner() -> Any:
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1

    decorated: Any = TaskRunnerV1
    plain: Any = decorated.__ray_metadata__.modified_class

    class TaskRunner(plain):  # the class behind verl's decorated one
        def run(self, config: Any) -> None:
            from boostapr.verl_plugin import trainer  # noqa: F401  # registers the trainer in this process

            super().run(config)

    return ray.remote(TaskRunner)


def _root_cause(error: Any) -> BaseException:
    """Ray wraps an error (`RayTaskError.cause`) once per process that it passed; the innermost says what happened."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    assert isinstance(error, BaseException)
    return error


@contextmanager
def _progress(metrics: Path, first: int, total: int) -> Iterator[None]:
    """A progress bar in this terminal, fed by the metrics file that the trainer writes in another process."""
    from tqdm import tqdm

    done, seen = threading.Event(), [len(read_jsonl(metrics)) if metrics.is_file() else 0]
    bar = tqdm(total=total, initial=first, desc="ppo", unit="step", postfix="starting verl and vLLM")

    def follow() -> None:
        while not done.wait(1.0):
            rows = read_jsonl(metrics) if metrics.is_file() else []
            if len(rows) > seen[0]:
                seen[0] = len(rows)
                bar.set_postfix_str(_summary(rows[-1]), refresh=False)
                bar.n = max(bar.n, rows[-1]["step"])
                bar.refresh()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        bar.close()


def _summary(row: Mapping[str, Any]) -> str:
    names = {"return": "rollout/return", "kl": "actor/reward_kl_penalty", "resolved on dev": "val/dev/resolved"}
    shown = [f"{label} {row[key]:.3g}" for label, key in names.items() if row.get(key) is not None]
    return ", ".join(shown)
