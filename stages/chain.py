"""The chain of stages as Algorithm 1 of the paper has it, and how a stage is started.

Every stage file ends with `stage_main("<name>", main)`. Typed at a terminal, that call is a *driver*: it checks the
configuration and the machine, locks the run folder, and starts the stage again as a supervised child. In the child the
same call runs `main(config, stage)`, where `config` shows only the sections that the chain declares for that stage.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from boostapr import supervise
from boostapr.config import CONF, ROOT, compose, load, validate
from boostapr.doctor import Needs, check_before_run
from boostapr.errors import UserError
from boostapr.runs import Run, Stage, StageRun
from stages.config import Config


def chain(config: Config) -> tuple[Stage, ...]:
    """The stages of a run, in order, with what each reads and leaves."""
    policies: list[tuple[str, tuple[str, ...], str]] = [(config.policy, (), "ppo")]
    for name, changes in config.rivals.items():
        policies.append((name, (*(f"{key}={value}" for key, value in changes.items()), f"policy={name}"), name))
    return (
        # Stage I: supervised fine-tuning on execution-verified demonstrations (section 3.2).
        Stage(
            "demonstrations",
            folder="demonstrations",
            title="ask the teacher; keep what passes every test",
            needs=(),
            settings=("seed", "benchmark", "sandbox", "demonstrations"),
            makes=("demonstrations.jsonl",),
        ),
        Stage(
            "sft",
            folder="sft",
            title="fine-tune the base model on the demonstrations",
            needs=("demonstrations",),
            settings=("seed", "benchmark", "demonstrations", "sft"),
            makes=("model",),
        ),
        # Stage II: reward models from executed candidates (section 3.3).
        Stage(
            "candidates",
            folder="candidates",
            title="sample K patches a bug and execute them",
            needs=("sft",),
            settings=("seed", "benchmark", "sandbox", "vllm", "candidates"),
            makes=("candidates.jsonl",),
        ),
        Stage(
            "reward",
            folder="reward",
            title="train R_seq (patches) and R_line (their lines)",
            needs=("sft", "candidates"),
            settings=("seed", "benchmark", "candidates", "reward"),
            makes=("r_seq", "r_line"),
        ),
        # Stage III: PPO with line-level credit (section 3.4); rivals differ in their settings alone.
        *(
            Stage(
                name,
                folder=folder,
                title="PPO on verl with line-level credit"
                if not overrides
                else f"a rival of it: {' '.join(overrides[:-1])}",
                needs=("sft", "reward"),
                settings=("seed", "policy", "benchmark", "sandbox", "sft", "reward", "credit", "ppo", "verl"),
                makes=("model",),
                module="stages.ppo",
                overrides=overrides,
            )
            for folder, overrides, name in policies
        ),
        Stage(
            "evaluate",
            folder="eval",
            title="run every system on the test splits",
            needs=("sft", "reward", "ppo", *config.rivals),
            settings=("seed", "system", "benchmark", "sandbox", "vllm", "evaluate"),
            grows=True,
        ),
    )


# Settings that change how fast a result comes, not what it is: a difference in them makes no stage stale.
LOCAL = (
    "sandbox.workers",
    "sandbox.cache",
    "sandbox.infra_retries",
    "sandbox.retry_backoff_s",
    "sft.num_threads",
    "sft.logging_steps",
    "vllm.num_threads",
    "reward.num_threads",
    "verl.weight_sync_timeout_s",
    "verl.rollout_timeout_s",
    "verl.poll_interval_s",
    "verl.trainer_threads",
    "verl.ray.start_attempts",
    "verl.ray.log_to_driver",
    "verl.ray.object_store_mb",
)

console = Console(highlight=False)


def stage_main(name: str, main: Callable[[Config, StageRun], bool | None]) -> NoReturn:
    """The last line of every stage file: run `main` supervised, and exit with its code.

    When `main` returns, the stage is finished, unless it returns False: then it ended well, but more is to be done.
    """
    if supervise.LABEL in os.environ:
        _exit(lambda: _work(name, main))
    launch(lambda config, overrides: drive(config, overrides, [name]))


def launch(task: Callable[[Config, Sequence[str]], int]) -> NoReturn:
    """Read the command line as Hydra does (also `--cfg job`, `--help`, `-m` for sweeps), call `task` for each job, exit.

    The configuration of every job is checked before the first one starts.
    """
    _exit(lambda: _launch(task))


def drive(config: Config, overrides: Sequence[str], names: Sequence[str]) -> int:
    """Run the named stages of the chain in order, each as a supervised child; finished ones are skipped.

    Returns the exit code of the first stage that failed, or 0.
    Raises UserError before any work if the run folder, the settings or the machine do not allow it.
    """
    run = open_run(config, overrides)
    run.lock()
    try:
        left = supervise.sweep(run.folder)
        if left:
            console.print(
                f"Stopped {len(left)} processes that an earlier start of this run had left: {', '.join(left)}"
            )
        for stage in _forced(config, run):
            for emptied in run.reset(stage):
                console.print(f"{run.path(emptied)} emptied: {stage.name} is to be redone")
        stages = [run[name] for name in names]
        settings = {stage.name: settings_of(config, overrides, stage) for stage in stages}
        machine = config.machine
        check_before_run(Needs(machine.memory_gb, machine.disk_gb, machine.requirements), run.folder)
        check_files(config)
        for stage in stages:
            run.check(stage, settings[stage.name])
            run.check_needs(stage, planned=names)
        _print_plan(run, stages)
        for stage in stages:
            if run.done(stage):
                continue
            code = _run_stage(run, stage, merge(overrides, stage.overrides))
            if code != 0:
                return code
    finally:
        run.unlock()
    return 0


def check_files(config: Config) -> None:
    """The files that no stage makes, but some stage needs hours later: models and benchmark files.

    Raises:
        UserError: one is missing; names its key.
    """
    missing = []
    models = {"sft.model": config.sft.model}
    models |= {f"evaluate.systems.{name}.model": system.model or "" for name, system in config.evaluate.systems.items()}
    for key, model in models.items():
        path = Path(model)
        local = path.is_absolute() or model.startswith(".") or (ROOT / path.parts[0]).is_dir() if model else False
        if local and not path.is_dir() and not (ROOT / path).is_dir():  # else it is the name of a hub
            missing.append(f"`{key}`: there is no folder {model}. `make base-model` makes the demo's.")
    for split, file in config.benchmark.files.items():
        if not file.is_file():
            missing.append(f"`benchmark.files.{split}`: there is no file {file}.")
    if missing:
        raise UserError("Something that the run needs is not there:\n" + "\n".join(f"  {line}" for line in missing))


def open_run(config: Config, overrides: Sequence[str]) -> Run:
    """The run folder that the configuration names."""
    return Run(config.runs / config.name, chain(config), " ".join(merge(overrides)), LOCAL)


def settings_of(config: Config, overrides: Sequence[str], stage: Stage) -> dict[str, Any]:
    """The sections of the configuration that a stage reads, as plain values: what decides whether its result is valid."""
    if stage.overrides:
        config = load(Config, merge(overrides, stage.overrides))
    return config.model_dump(mode="json", include=set(stage.settings))


def merge(overrides: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Overrides for a child: `more` replaces those of the same key; `force` is the driver's business."""
    keys = {_key(text) for text in more} | {"force"}
    return [*(text for text in overrides if _key(text) not in keys), *more]


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+")


def view(config: Config, stage: Stage) -> Config:
    """The configuration as a stage sees it: reading a section that the chain does not declare for it fails."""
    return Config.model_construct(**{name: getattr(config, name) for name in stage.settings})


def duration(seconds: float) -> str:
    """Seconds as "41 s" or "3 min 05 s"."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


# -- parts --------------------------------------------------------------------------------------------------------------


def _run_stage(run: Run, stage: Stage, overrides: Sequence[str]) -> int:
    console.rule(f"[bold]{stage.name}[/]: {stage.title}", align="left")
    started = time.monotonic()
    log = run.path(stage) / "log.txt"
    module = stage.module or f"stages.{stage.name}"
    code = supervise.run([sys.executable, "-m", module, *overrides], run.folder, log)
    took = duration(time.monotonic() - started)
    if code == 0:
        console.print(f"{stage.name} took {took}")
    else:
        reason = " (killed: out of memory?)" if code == 137 else ""
        console.print(f"[red]{stage.name} failed[/] after {took}, exit code {code}{reason}. Everything it said: {log}")
        console.print("Start the same command again to continue from here.")
    return code


def _print_plan(run: Run, stages: Sequence[Stage]) -> None:
    for stage in stages:
        record = run.done(stage)
        state = f"[green]done[/] ({duration(record['wall_s'])})" if record else "to run"
        console.print(f"  {stage.name:15} {stage.title:47} {state}", soft_wrap=True)


def _forced(config: Config, run: Run) -> list[Stage]:
    if config.force == "all":
        return [run.chain[0]]
    return [run[name] for name in config.force]


def _work(name: str, main: Callable[[Config, StageRun], bool | None]) -> int:
    """In the supervised child: the stage itself."""
    supervise.raise_on_signals()
    overrides = sys.argv[1:]
    config = load(Config, overrides)
    run = open_run(config, overrides)
    stage = run[name]
    opened = run.open(stage, settings_of(config, overrides, stage))
    finished = main(view(config, stage), opened)
    if finished is not False and run.done(stage) is None:
        opened.finish()
    return 0


def _launch(task: Callable[[Config, Sequence[str]], int]) -> int:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    supervise.die_with_parent()
    supervise.raise_on_signals()
    # argparse takes overrides on one side of an option only; people write `experiment=demo -m seed=0,1`.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda text: text not in ("-m", "--multirun"))
    _check_jobs(sys.argv[1:])
    worst = 0

    def job(config: DictConfig) -> None:
        nonlocal worst
        overrides = list(HydraConfig.get().overrides.task)
        try:
            worst = max(worst, task(validate(Config, config, overrides), overrides))
        except UserError as error:
            _complain(error)
            worst = max(worst, 2)

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    return worst


def _check_jobs(argv: Sequence[str]) -> None:
    """Check the configuration of every job of the command line, so that mistakes come up before any work, in our words."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = [text for text in argv if not text.startswith("-")]
    if any(text in argv for text in ("--help", "-h", "--hydra-help", "--info", "-i", "--version", "--cfg", "-c")):
        return
    if "-m" in argv or "--multirun" in argv:
        try:
            parsed = OverridesParser.create().parse_overrides(overrides)
            jobs = [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
        except Exception:
            compose(overrides)  # says which override is wrong
            raise
    else:
        jobs = [overrides]
    for job in jobs:
        load(Config, job)


def _exit(work: Callable[[], int]) -> NoReturn:
    """Run, and leave with one message instead of a traceback where the user is to act."""
    try:
        code = work()
    except UserError as error:
        _complain(error)
        code = 2
    except KeyboardInterrupt:
        code = _stopped("Interrupted", 130)
    except supervise.Terminated as stop:
        code = _stopped(f"Stopped by {stop}", stop.exit_code)
    sys.stdout.flush()
    sys.exit(code)


def _stopped(how: str, code: int) -> int:
    if supervise.LABEL not in os.environ:  # the driver speaks, and its stage is silent
        print(f"\n{how}. Nothing is left running; the same command continues from here.", file=sys.stderr)
    return code


def _complain(error: UserError) -> None:
    print(f"boostapr: {error}", file=sys.stderr)
