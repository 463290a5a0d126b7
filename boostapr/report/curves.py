"""Which logged numbers are worth a panel: verl's metric names, and those of the smaller training loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import yaml

from boostapr.report.data import RunData
from boostapr.report.plots import Curve

Points = list[tuple[int, float]]
Rows = Sequence[tuple[int, Mapping[str, float]]]
REWARD = "critic/score/mean"  # verl logs it in every RL stage, and nothing else does
# Our trainer logs val/<split>/resolved; plain verl val-core/<source>/<variable>/mean@<n>. The first that is found counts.
_VALIDATION = (
    re.compile(r"^val/(?P<source>[^/]+)/resolved$"),
    re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?:resolved|acc)/mean@\d+$"),
)
_VALIDATION_REWARD = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?:reward|score)/mean@\d+$")


def policy_curves(run: RunData) -> list[Curve]:
    """Reward, pass rate on dev, KL, its coefficient and the form of the answers, of every RL stage of the run."""
    stages = {name: rows for name, rows in run.curves.items() if _is_policy(rows)}
    reward: dict[str, Points] = {}
    passed: dict[str, Points] = {}
    kl: dict[str, Points] = {}
    coefficient: dict[str, Points] = {}
    forms: dict[str, Points] = {}
    is_reward = False
    for stage, rows in stages.items():
        tag = "" if len(stages) == 1 else f"{stage}: "
        alone = tag.rstrip(": ")
        _add(reward, f"{tag}as scored", _points(rows, (REWARD,)))
        _add(reward, f"{tag}less the KL's price", _points(rows, ("critic/rewards/mean",)))
        _add(kl, alone or "KL", _points(rows, ("actor/reward_kl_penalty", "actor/kl_loss")))
        _add(coefficient, alone or "coefficient", _points(rows, ("actor/reward_kl_penalty_coeff", "actor/kl_coef")))
        _add(forms, f"{tag}valid diff", _points(rows, ("rollout/format_valid",)))
        _add(forms, f"{tag}repairable", _points(rows, ("rollout/format_recoverable",)))
        _add(forms, f"{tag}no line credit", _points(rows, ("rollout/fallback",)))
        validation, only_reward = _validation(rows)
        is_reward |= only_reward
        for source, points in validation.items():
            _add(passed, f"{tag}{source}", points)
    panels = [
        Curve("Mean reward of the answers", "What the answers of each step were rewarded with, before and after paying for the KL.", reward, noisy=True),
        Curve("Reward on dev" if is_reward else "Bugs solved on dev", "Greedy answers to bugs that are not trained on.", passed, percent=not is_reward),
        Curve("KL per token", "How far the answers have moved from the SFT model's.", kl, target=_kl_target(run, stages)),
        Curve("KL coefficient", "The price of one unit of KL, adjusted to hold the KL near its target.", coefficient),
        Curve("Form of the answers", "Answers without line credit do not parse: their last token takes the whole score.", forms, percent=True, noisy=True),
    ]  # fmt: skip
    return [panel for panel in panels if panel.series]


def loss_curves(run: RunData) -> list[Curve]:
    """Training (and dev) loss of the supervised stages: any folder that logged a `loss`."""
    panels = []
    for stage, rows in run.curves.items():
        if _is_policy(rows):
            continue
        names = [
            key
            for key in sorted(_keys(rows))
            if re.search(r"(^|[/_])loss$", key) and not key.startswith(("actor/", "critic/"))
        ]
        series = {name: _points(rows, (name,)) for name in names[:4]}
        series = {name: points for name, points in series.items() if len(points) > 1}
        if series:
            panels.append(Curve(f"Loss: {stage}", "Training objective; lower is better.", series, noisy=True))
    return panels


def side_by_side(runs: Sequence[RunData]) -> list[Curve]:
    """The panels of one run; of several runs, panels with the same title become one, with the first series of each run."""
    if len(runs) == 1:
        return [*policy_curves(runs[0]), *loss_curves(runs[0])]
    merged: dict[str, Curve] = {}
    for run in runs:
        for panel in (*policy_curves(run), *loss_curves(run)):
            series = {run.name: next(iter(panel.series.values()))}
            before = merged.get(panel.title, panel)
            old = before.series if panel.title in merged else {}
            target = before.target if before.target == panel.target else None
            merged[panel.title] = replace(panel, series={**old, **series}, target=target)
    return list(merged.values())


def _points(rows: Rows, keys: Iterable[str]) -> Points:
    """The series of the first key that was logged at all."""
    for key in keys:
        points = [(step, values[key]) for step, values in rows if key in values]
        if points:
            return points
    return []


def _keys(rows: Rows) -> set[str]:
    return {key for _, values in rows for key in values}


def _add(series: dict[str, Points], label: str, points: Points) -> None:
    if points:
        series[label] = points


def _is_policy(rows: Rows) -> bool:
    return any(REWARD in values for _, values in rows)


def _validation(rows: Rows) -> tuple[dict[str, Points], bool]:
    """Series by data source, and whether they are rewards because no pass rate was logged."""
    for pattern in (*_VALIDATION, _VALIDATION_REWARD):
        found = {m["source"]: _points(rows, (m[0],)) for m in map(pattern.match, sorted(_keys(rows))) if m}
        # Where dev answers were not executed, "resolved" is 0 for want of a verdict: no curve rather than a flat one.
        found = {source: points for source, points in found.items() if _was_executed(rows, source)}
        if found:
            return found, pattern is _VALIDATION_REWARD
    return {}, False


def _was_executed(rows: Rows, source: str) -> bool:
    executed = _points(rows, (f"val/{source}/executed",))
    return not executed or any(value > 0 for _, value in executed)


def _kl_target(run: RunData, stages: Iterable[str]) -> float | None:
    """The target of the adaptive coefficient, if the stage's resolved configuration states one."""
    for stage in run.stages:
        config = yaml.safe_load(stage.config) if stage.name in stages and stage.config else None
        for section in [config, *config.values()] if isinstance(config, dict) else []:
            kl = section.get("kl") if isinstance(section, dict) else None
            if isinstance(kl, dict) and kl.get("type") == "adaptive" and isinstance(kl.get("target"), (int, float)):
                return float(kl["target"])
    return None
