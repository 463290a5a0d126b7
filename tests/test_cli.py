"""The command line: quick, complete, and helpful when a command is mistyped."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

import pytest

from boostapr import cli
from boostapr.errors import UserError
from stages.chain import chain
from stages.config import Config


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in cli.COMMANDS:
        assert any(line.startswith(f"  {command} ") for line in lines)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("boostapr 0.")


def test_help_imports_nothing_heavy() -> None:
    """`boostapr --help` answers at once: no numerics, no configuration, no stage is loaded for it."""
    code = "import sys; from boostapr.cli import main; main(['--help']); "
    code += "print([m for m in ('numpy', 'torch', 'hydra', 'pydantic', 'rich', 'ray', 'stages') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("target", sorted(target for target, _ in cli.COMMANDS.values()))
def test_every_command_leads_somewhere(target: str) -> None:
    """A command in the list whose code is missing would be a lie."""
    assert importlib.util.find_spec(target.split(":")[0]) is not None


def test_every_stage_has_a_command() -> None:
    from boostapr.config import load

    for stage in chain(load(Config, ["experiment=systems"])):
        assert stage.command.split()[1] in cli.COMMANDS


@pytest.mark.parametrize(("typed", "meant"), [("pipline", "pipeline"), ("evalute", "evaluate"), ("doc", "doctor")])
def test_a_mistyped_command_gets_its_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([typed]) == 2
    assert f"Did you mean `boostapr {meant}`?" in capsys.readouterr().err


def test_a_user_error_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(argv: Sequence[str]) -> int:
        raise UserError("`x.y` is wrong. Do this.")

    monkeypatch.setattr("boostapr.doctor.main", fails)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "boostapr doctor: `x.y` is wrong. Do this.\n"
