"""The Markdown twin of the report: the same numbers and patches, for a repository page or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from boostapr.report import terms, view
from boostapr.report.credit_map import CreditMap
from boostapr.report.curves import policy_curves
from boostapr.report.showcase import Case, Showcase
from boostapr.report.view import View


def render(report: View) -> str:
    """The whole report as Markdown text."""
    parts = [f"# {report.title}", "", *[f"- {sentence}" for _, sentence in report.verdicts], ""]
    if report.problems:
        parts += [
            "**What to know before you trust these numbers**",
            "",
            *[f"- {_plain(p)}" for p in report.problems],
            "",
        ]
    for run, summary in zip(report.runs, report.summaries, strict=True):
        suffix = f": {summary['run']}" if len(report.runs) > 1 else ""
        parts += [f"## Bugs solved{suffix}", "", *scores_table(summary), ""]
        if summary["comparisons"]:
            parts += [f"## Differences{suffix}", "", *differences_table(summary), ""]
        parts += _training(run, suffix)
    if report.seeds:
        parts += [f"## Over {len(report.runs)} runs", "", *seeds_table(report), ""]
    if report.show:
        parts += ["## Which lines earned the reward", "", *_showcase(report.show)]
    for run, summary in zip(report.runs, report.summaries, strict=True):
        parts += _answers(summary)
        quality = view.reward_quality(run)
        if quality:
            rows = [(q.model, q.label, q.value, q.paper) for q in quality]
            parts += ["## Reward models", "", *_table(("model", "measure", "here", "paper's"), rows), ""]
        parts += _ran(view.ran(run))
    parts += ["## Words", "", *[f"- **{word}**: {text}" for word, text in terms.GLOSSARY.items()], ""]
    return "\n".join(parts)


def scores_table(summary: Mapping[str, Any]) -> list[str]:
    """Systems by split: pass@1 and pass@4 with their intervals, share of valid diffs, n."""
    rows = []
    for system, found in summary["systems"].items():
        for split, entry in found.items():
            cells = [_share(entry, key) for key in ("pass@1", f"pass@{4}", "valid_diff_rate")]
            rows.append((terms.system_name(system), split, str(entry["n"]), *cells))
    return _table(("system", "split", "bugs", "pass@1 (95% interval)", "pass@4", "valid diffs"), rows)


def differences_table(summary: Mapping[str, Any]) -> list[str]:
    """Paired comparisons: difference in points, interval, what changed, exact McNemar p."""
    rows = []
    for c in summary["comparisons"].values():
        pair = terms.pair(c)
        for split, e in c["splits"].items():
            if e["difference"] is None:
                rows.append((pair, split, "not compared", e["reason"], "", "", ""))
                continue
            ends = f"{terms.points(e['ci95'][0])} to {terms.points(e['ci95'][1])}"
            counts = [str(e[k]) for k in ("newly_resolved", "degraded")]
            rows.append((pair, split, terms.points(e["difference"]), ends, *counts, terms.p_value(e["mcnemar_p"])))
    return _table(("compared", "split", "points", "95% interval", "newly solved", "newly broken", "p"), rows)


def seeds_table(report: View) -> list[str]:
    """Mean and deviation over runs."""
    rows = []
    for row in report.seeds:
        name, sd = terms.system_name(row.system), "n/a" if row.sd is None else f"{100 * row.sd:.1f}"
        each = ", ".join(f"{100 * v:.1f}" for v in row.per_run).replace("-", "−")
        if row.interval is None:
            rows.append((row.split, name, terms.percent(row.mean), sd, "", each))
        else:
            ends = f"{terms.points(row.interval.low)} to {terms.points(row.interval.high)}"
            rows.append(
                (row.split, f"{name} − {terms.system_name(row.baseline)}", terms.points(row.mean), sd, ends, each)
            )
    return _table(("split", "system or difference", "mean", "deviation", "95% interval", "each run"), rows)


def credit_block(patch: CreditMap) -> list[str]:
    """A patch as text with the credit of each span in the margin."""
    fence = "`" * max(3, 1 + max((len(run) for line in patch.lines for run in re.findall("`+", line.text)), default=0))
    lines = [f"{fence}text"]
    for line in patch.lines:
        margin = (
            f"{line.credit:+.2f}" if line.opens and line.credit is not None else "|" if line.credit is not None else ""
        )
        lines.append(f"{margin:>6}  {line.text}".rstrip())
    return [*lines, fence]


def _showcase(show: Showcase) -> list[str]:
    ours, theirs = terms.system_name(show.system), terms.system_name(show.baseline)
    parts = [
        "The number in the margin is the reward that the span's tokens carry together; `|` marks the span's other lines.",
        "",
    ]
    for title, cases, total in (
        (f"Solved by {ours}, not by {theirs}", show.solved, show.num_solved),
        (f"Solved by {theirs}, broken by {ours}", show.broken, show.num_broken),
    ):
        parts += [f"### {title}: {len(cases)} of {total} on {show.split}", ""]
        for case in cases:
            parts += _case(case)
    return parts


def _case(case: Case) -> list[str]:
    issue = [f"> {_plain(line)}" for line in case.issue.split("\n")] if case.issue else ["> (issue text not stored)"]
    score = "" if case.patch.seq is None else f", R_seq score {case.patch.seq:+.2f}"
    notes = [_plain(n) for n in (*case.failures, case.patch.note) if n]
    return [
        f"**{case.instance_id}** ({case.outcome}{score})",
        "",
        *issue,
        "",
        *credit_block(case.patch),
        "",
        *notes,
        "",
    ]


def _training(run: Any, suffix: str) -> list[str]:
    rows = []
    for panel in policy_curves(run):
        for label, points in panel.series.items():
            shown = [f"{100 * v:.1f}%" if panel.percent else f"{v:.4g}" for _, v in (points[0], points[-1])]
            rows.append((panel.title, label, f"{points[0][0]}: {shown[0]}", f"{points[-1][0]}: {shown[1]}"))
    return (
        [f"## Training{suffix}", "", *_table(("measure", "series", "first step", "last step"), rows), ""]
        if rows
        else []
    )


def _answers(summary: Mapping[str, Any]) -> list[str]:
    statuses = [s for s in (*terms.STATUSES, "unknown") if any(s in c for c in summary["executed"].values())]
    rows = [
        (where, str(sum(c.values())), *(str(c.get(s, 0)) for s in statuses)) for where, c in summary["executed"].items()
    ]
    forms = [
        (f.label, *(str(f.counts.get(k, 0)) for k in terms.FORMATS), str(f.fallback))
        for f in view.format_lines(summary)
    ]
    return [
        f"## What became of the answers: {summary['run']}", "",
        *_table(("where", "answers run", *(s.replace("_", " ") for s in statuses)), rows), "",
        *_table(("system, split", *(f.replace("_", " ") for f in terms.FORMATS), "no line credit possible"), forms), "",
    ]  # fmt: skip


def _ran(run: view.RanLine) -> list[str]:
    rows = [(s.name, s.finished, s.time, s.seed) for s in run.stages]
    command = [f"Command: `{run.command}`", ""] if run.command else []
    versions = [f"Versions: {run.versions}.", ""] if run.versions else []
    table = _table(("stage", "finished", "time", "seed"), [*rows, ("all stages", "", run.total, "")])
    return [f"## What ran: {run.name}", "", *command, *table, "", *versions]


def _share(entry: Mapping[str, Any], key: str) -> str:
    if entry[key] is None:
        return f"partial: {entry['answered']} of {entry['n']}" if entry["missing"] else "n/a"
    low, high = entry[f"{key}_ci95"]
    return terms.percent(entry[key]) + ("" if key == "valid_diff_rate" else f" ({100 * low:.1f} to {100 * high:.1f})")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [" | ".join(_plain(cell).replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {row} |" for row in body)]


def _plain(text: str) -> str:
    """Text that Markdown will not take for HTML, in one line."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())
