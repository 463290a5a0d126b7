"""Settings for tests: the files of conf/ with changes on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from boostapr.config import CONF
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings
from boostapr.verl_plugin.verl_config import RunPaths


def section(group: str, name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """conf/<group>/<name>.yaml as plain values."""
    tree = OmegaConf.create({"seed": 0, group: OmegaConf.load(CONF / group / f"{name}.yaml")})
    values = OmegaConf.to_container(OmegaConf.merge(tree, {group: changes or {}}), resolve=True)
    assert isinstance(values, dict)
    return dict(values[group])


def ppo(name: str = "demo", **changes: Any) -> PPOSettings:
    """A PPO configuration."""
    return PPOSettings.model_validate(section("ppo", name, changes))


def verl(name: str = "cpu", **changes: Any) -> VerlSettings:
    """A machine."""
    return VerlSettings.model_validate(section("verl", name, changes))


def paths(folder: Path) -> RunPaths:
    """Files of a run in `folder`."""
    return RunPaths(folder / "policy", folder / "train.jsonl", folder / "dev.jsonl", folder / "ppo")


CREDIT = {
    "algorithm": "boostapr",
    "tau": 0.5,
    "granularity": "edit_line",
    "format_penalty": {"valid": 0.0, "recoverable": -0.4, "malformed": -1.0, "not_a_diff": -1.5},
}
