"""The HTML report: one file that needs nothing but itself (styles and figures inside, no request to anywhere)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from boostapr.report import plots, terms, view
from boostapr.report.curves import side_by_side
from boostapr.report.several import SeedRow
from boostapr.report.view import View

CONTENTS = {
    "results": "Bugs solved",
    "differences": "Are the differences real?",
    "training": "Training",
    "credit": "Credit by line",
    "answers": "What became of the answers",
    "reward-models": "Reward models",
    "groups": "By project and kind",
    "overlap": "Overlap with the reference",
    "paper": "The paper's numbers",
    "ran": "What ran",
    "words": "Words",
}


def render(report: View) -> str:
    """The whole page as text."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["share"] = lambda weight: terms.percent(weight, 0)
    source = files("boostapr.report")
    template = environment.from_string((source / "report.html.j2").read_text("utf-8"))
    run = report.runs[0]
    sections = {
        "curves": [(panel, _safe(plots.curve(panel))) for panel in side_by_side(report.runs)],
        "show": report.show,
        "reward_models": view.reward_quality(run),
        "groups": [(g, _safe(plots.groups(g.groups, g.systems, g.label))) for g in view.groupings(run)],
        "overlap": view.overlaps(run),
    }
    absent = {
        name
        for name, value in zip(
            ("training", "credit", "reward-models", "groups", "overlap"), sections.values(), strict=True
        )
        if not value
    }
    used = {s for summary in report.summaries for counts in summary["executed"].values() for s in counts}
    return template.render(
        title=report.title,
        css=_safe((source / "style.css").read_text("utf-8")),
        contents=[(k, v) for k, v in CONTENTS.items() if k not in absent],
        verdicts=report.verdicts,
        problems=report.problems,
        summaries=report.summaries,
        seeds=[_seed_row(row) for row in report.seeds],
        described=[
            (s, terms.SYSTEMS[s][1])
            for s in terms.SYSTEMS
            if any(s in summary["systems"] for summary in report.summaries)
        ],
        figures={summary["run"]: _figures(summary) for summary in report.summaries},
        only_first=_only_first(report),
        formats=list(terms.FORMATS),
        format_rows=view.format_lines,
        executed_statuses=lambda summary: [
            s for s in (*terms.STATUSES, "unknown") if any(s in c for c in summary["executed"].values())
        ],
        statuses=[(s, text) for s, text in terms.STATUSES.items() if s in used],
        format_words=list(terms.FORMATS.items()),
        paper=terms.PAPER_SYSTEMS,
        main_split=report.main_split,
        ran=[view.ran(r) for r in report.runs],
        glossary=terms.GLOSSARY,
        splits=_splits,
        size=lambda summary, split: next(f[split]["n"] for f in summary["systems"].values() if split in f),
        name=terms.system_name,
        pair=terms.pair,
        percent=terms.percent,
        percent_range=lambda ends: f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}",
        points=terms.points,
        p_value=terms.p_value,
        signed=lambda x: f"{x:+.2f}".replace("-", "−"),
        **sections,
    )


def _only_first(report: View) -> Markup:
    if len(report.runs) == 1:
        return Markup("")
    return Markup('<p class="muted">Of the first run, {}, alone.</p>').format(report.runs[0].name)


def _figures(summary: Mapping[str, Any]) -> dict[str, list[Markup]]:
    splits = _splits(summary)
    return {
        "scores": [_safe(plots.scores(summary, split)) for split in splits],
        "differences": [_safe(plots.differences(summary, split)) for split in splits if summary["comparisons"]],
        "outcomes": [_safe(plots.outcomes(summary, split)) for split in splits],
    }


def _splits(summary: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(split for found in summary["systems"].values() for split in found))


def _seed_row(row: SeedRow) -> dict[str, str]:
    name = terms.system_name(row.system)
    if row.interval is None:
        return {
            "split": row.split,
            "label": name,
            "mean": terms.percent(row.mean),
            "sd": _deviation(row.sd),
            "ci95": "",
        }
    ends = f"{terms.points(row.interval.low)} to {terms.points(row.interval.high)}"
    label = terms.pair({"system": row.system, "baseline": row.baseline})
    return {
        "split": row.split,
        "label": label,
        "mean": f"{terms.points(row.mean)} points",
        "sd": _deviation(row.sd),
        "ci95": ends,
    }


def _deviation(sd: float | None) -> str:
    return "n/a" if sd is None else f"{100 * sd:.1f}"


def _safe(text: str) -> Markup:
    return Markup(text)  # our own figure or style sheet; everything from a run is escaped
