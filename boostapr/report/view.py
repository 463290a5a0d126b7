"""What both forms of the report (HTML and Markdown) say, computed once: sentences, rows and settings of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from boostapr import analyses
from boostapr.report import terms
from boostapr.report.data import RunData
from boostapr.report.several import SeedRow, over_runs
from boostapr.report.showcase import Showcase, showcase

HEADLINES = ("sft_vs_base", "boostapr_vs_sft", "boostapr_vs_ppo_r_seq", "rerank_vs_sft")
FALLBACK_FORMATS = ("malformed", "not_a_diff")
# Table 8 of the paper: key in reward/metrics.json, words, the paper's value.
QUALITY = (
    ("r_seq", "pairwise_accuracy", "pairwise accuracy", "82.4%"),
    ("r_seq", "roc_auc", "AUC, passing against failing patches", "0.891"),
    ("r_seq", "spearman", "rank correlation with the execution reward (Spearman)", "0.743"),
    ("r_line", "pairwise_accuracy", "pairwise accuracy over spans", "78.6%"),
    ("r_line", "top1_hit_rate", "best-scored span is a good one (top 1)", "67.3%"),
    ("r_line", "top1_chance", "the same by chance", ""),
    ("r_line", "top3_hit_rate", "a good span among the three best-scored (top 3)", "84.1%"),
    ("r_line", "top3_chance", "the same by chance", ""),
    ("r_line", "within_patch_accuracy", "within one failing patch: guilty span scored below a neutral one", ""),
)
COUNTS = (
    ("data", "num_candidates", "executed answers"),
    ("data", "num_training_instances", "bugs trained on"),
    ("data", "num_held_out_instances", "bugs held out for these numbers"),
)
GROUPINGS = (
    ("project", analyses.project),
    ("kind of bug", analyses.bug_kinds),
    ("number of places to change", analyses.num_bugs),
)


@dataclass(frozen=True)
class StageLine:
    name: str
    finished: str
    time: str
    seed: str
    config: str


@dataclass(frozen=True)
class RanLine:
    """What ran: command, stages with times and seeds, versions."""

    name: str
    command: str
    stages: list[StageLine]
    total: str
    versions: str


@dataclass(frozen=True)
class QualityLine:
    model: str
    label: str
    value: str
    paper: str = ""


@dataclass(frozen=True)
class FormatLine:
    label: str
    counts: Mapping[str, int]
    fallback: int


@dataclass(frozen=True)
class OverlapLine:
    system: str
    split: str
    n: int
    median: float
    below_half: float


@dataclass(frozen=True)
class Grouping:
    """Solved bugs by project or another grouping on one split."""

    by: str
    split: str
    groups: list[analyses.Group]
    systems: list[str]

    @property
    def label(self) -> str:
        return f"{self.by}, {self.split}"


@dataclass(frozen=True)
class View:
    """Everything that a report of one or several runs shows, apart from the figures."""

    title: str
    runs: Sequence[RunData]
    summaries: Sequence[Mapping[str, Any]]
    verdicts: list[tuple[str, str]]
    problems: list[str]
    show: Showcase | None
    seeds: list[SeedRow] = field(default_factory=list)

    @property
    def main_split(self) -> str:
        return next(iter(self.runs[0].splits()), "test")


def view(runs: Sequence[RunData], summaries: Sequence[Mapping[str, Any]]) -> View:
    """Put together what the report of these runs says; `summaries` are `summarize(run)` in the same order."""
    several = len(runs) > 1
    seeds, left_out = over_runs(runs) if several else ([], [])
    problems = [f"{s['run']}: {p}" if several else p for s in summaries for p in s["problems"]] + left_out
    title = f"boostapr: {summaries[0]['run']}" if not several else f"boostapr: {len(runs)} runs side by side"
    shown = next((s for s in map(showcase, runs) if s), None)
    return View(title, runs, summaries, _verdicts(summaries), problems, shown, seeds)


def _verdicts(summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(better | worse | open, sentence) for the comparisons that matter most, main split first, then the others."""
    found = []
    for summary in summaries:
        prefix = f"{summary['run']}: " if len(summaries) > 1 else ""
        for name in HEADLINES:
            comparison = summary["comparisons"].get(name)
            if comparison is None:
                continue
            kind = "open"
            if comparison["difference"] is not None:
                low, high = comparison["ci95"]
                kind = "better" if low > 0 else "worse" if high < 0 else "open"
            scores = [summary["systems"][comparison[k]][comparison["split"]]["pass@1"] for k in ("baseline", "system")]
            n = summary["systems"][comparison["system"]][comparison["split"]]["n"]
            numbers = (
                f" {terms.percent(scores[0])} → {terms.percent(scores[1])} of {n} {comparison['split']} bugs."
                if None not in scores
                else ""
            )
            found.append((kind, f"{prefix}{terms.verdict(comparison)}{numbers}"))
    return found


def ran(run: RunData) -> RanLine:
    """Command, stages, seeds, times and versions of a run, from the done.json and config.yaml of its stages."""
    lines, versions, command = [], dict[str, str](), ""
    for stage in run.stages:
        done = stage.done or {}
        config = yaml.safe_load(stage.config) if stage.config else None
        seed = done.get("seed", config.get("seed") if isinstance(config, dict) else None)
        versions |= {str(k): str(v) for k, v in (done.get("versions") or {}).items()}
        command = command or str(done.get("command", ""))
        finished = str(done.get("finished", "yes")) if stage.done is not None else "not finished"
        lines.append(
            StageLine(
                stage.name,
                finished,
                terms.duration(stage.seconds),
                "n/a" if seed is None else str(seed),
                stage.config or "",
            )
        )
    times = [stage.seconds for stage in run.stages if stage.seconds is not None]
    return RanLine(
        run.name,
        command,
        lines,
        terms.duration(sum(times)) if times else "n/a",
        ", ".join(f"{k} {v}" for k, v in versions.items()),
    )


def reward_quality(run: RunData) -> list[QualityLine]:
    """Table 8 of this run; a measure that was undefined is named as such."""
    metrics = run.reward_metrics
    if not metrics:
        return []
    lines = []
    for model, key, label, paper in QUALITY:
        if key not in (metrics.get(model) or {}):
            continue
        value = metrics[model][key]
        shown = (
            "undefined" if value is None else f"{value:.3f}" if key in ("roc_auc", "spearman") else terms.percent(value)
        )
        lines.append(QualityLine(terms.MODELS[model], label, shown, paper))
    lines += [
        QualityLine("data", label, f"{metrics[part][key]:,}")
        for part, key, label in COUNTS
        if key in (metrics.get(part) or {})
    ]
    labels = metrics.get("labels") or {}
    names = {
        "assertion_trace": "the failing assertion's trace",
        "function_level": "the functions in the trace",
        "uniform": "no trace (uniform)",
    }
    total = sum(labels.get(f"num_{name}_spans", 0) for name in names)
    for name, text in names.items():
        if total:
            count = labels.get(f"num_{name}_spans", 0)
            lines.append(
                QualityLine(
                    "labels",
                    f"spans of failing patches labelled from {text}",
                    f"{count:,} ({terms.percent(count / total, 0)})",
                )
            )
    return lines


def format_lines(summary: Mapping[str, Any]) -> list[FormatLine]:
    """Format classes of first and sampled answers; fallback: answers whose last token would take the whole score."""
    lines = []
    for system, found in summary["systems"].items():
        for split, entry in found.items():
            for label, key in (("", "formats"), (", sampled", "formats_sampled")):
                if entry[key]:
                    fallback = sum(entry[key].get(name, 0) for name in FALLBACK_FORMATS)
                    lines.append(FormatLine(f"{terms.system_name(system)}, {split}{label}", entry[key], fallback))
    return lines


def overlaps(run: RunData) -> list[OverlapLine]:
    """Token overlap of solved bugs' patches with the reference, where references are known."""
    lines = []
    for system, splits in run.systems.items():
        for split, results in splits.items():
            references = {i: str(instance.get("patch", "")) for i, instance in run.instances.get(split, {}).items()}
            found = analyses.reference_overlap(results.first, references)
            if found:
                lines.append(OverlapLine(system, split, found.n, found.median, found.below_half))
    return lines


def groupings(run: RunData) -> list[Grouping]:
    """Solved bugs by project, kind of bug and number of bugs, where a split has more than one of them."""
    found = []
    for split in run.splits():
        answers = {system: splits[split].first for system, splits in run.systems.items() if split in splits}
        for by, key in GROUPINGS:
            groups = analyses.by_group(answers, run.instances.get(split, {}), key)
            if len(groups) > 1:
                found.append(Grouping(by, split, groups, list(answers)))
    return found
