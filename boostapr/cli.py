"""`boostapr <command>`: one word for each thing that the package does.

A stage runs as `python -m stages.<name>` with the same arguments; the rest are functions. Nothing heavy is imported
before the command is known, so that `boostapr --help` answers at once.
"""

import os
import pkgutil
import sys
from collections.abc import Sequence

from boostapr.errors import UserError

# command: (what runs it, what it does). A target without ":" is a module that is run.
COMMANDS: dict[str, tuple[str, str]] = {
    "pipeline": ("stages.pipeline", "every stage in order, then the table and the report"),
    "demonstrations": ("stages.demonstrations", "stage I: ask the teacher, keep what passes every test"),
    "sft": ("stages.sft", "stage I: fine-tune the base model on the demonstrations"),
    "candidates": ("stages.candidates", "stage II: sample patches from the SFT model and execute them"),
    "reward": ("stages.reward", "stage II: train R_seq and R_line on the executed candidates"),
    "ppo": ("stages.ppo", "stage III: PPO on verl with line-level credit"),
    "evaluate": ("stages.evaluate", "run the trained systems on the test splits"),
    "report": ("boostapr.report.cli:main", "summary, table and HTML report of a run folder"),
    "compare": ("boostapr.compare:main", "two runs or systems on the bugs that both answered, with intervals"),
    "inspect": ("boostapr.inspect:main", "show how a patch is read and which line gets which credit"),
    "microbugs": ("envs.benchmarks.microbugs.cli:main", "make a fresh set of bugs from a seed"),
    "preflight": ("envs.preflight:main", "check that each bug of a benchmark file is fit to be used"),
    "sandbox": ("envs.sandboxes.cli:main", "clear away what dead sandboxes left; measure what a run costs"),
    "base-model": ("stages.base_model", "train the demo's base model from scratch"),
    "doctor": ("boostapr.doctor:main", "check this machine: what is there, what is missing, and what for"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2: the message on stderr says what to put right)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    command, *rest = arguments
    if command == "--version":
        from importlib.metadata import version

        print(f"boostapr {version('boostapr')}")
        return 0
    if command not in COMMANDS:
        print(_unknown(command), file=sys.stderr)
        return 2
    target = COMMANDS[command][0]
    if ":" not in target:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", target, *rest])
    try:
        code: int | None = pkgutil.resolve_name(target)(rest)
    except UserError as error:
        print(f"boostapr {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `boostapr inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "boostapr trains language models to repair programs, and shows which lines of a patch earned the reward.\n\n"
        f"usage: boostapr <command> [arguments]\n\n{lines}\n\n"
        "Stages take Hydra settings: `boostapr pipeline experiment=demo seed=1 name=demo-1`; `--help` after a command says more."
    )


def _unknown(command: str) -> str:
    import difflib

    close = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
    hint = f"Did you mean `boostapr {close[0]}`?" if close else "`boostapr --help` lists the commands."
    return f"boostapr: there is no command `{command}`. {hint}"


if __name__ == "__main__":
    sys.exit(main())
