"""Reports of finished runs: summary.json, a table for the terminal, one self-contained HTML file and its Markdown twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from boostapr.errors import UserError
from boostapr.files import write_atomic, write_json
from boostapr.report import terms
from boostapr.report.data import load_run
from boostapr.report.summary import summarize


def build(run_dir: Path) -> dict[str, Any]:
    """Read a run folder; write its summary.json, report/index.html and report/report.md; return the summary.

    summary.json: `systems` -> system -> split -> `pass@1`, `pass@4`, `valid_diff_rate` (0 to 1, None if incomplete; each with
    `<name>_ci95`), `n`, `resolved`, `statuses`, `formats`, `infra`; `comparisons` -> `sft_vs_base`, `boostapr_vs_sft`, ... ->
    `difference` and `ci95` on the test split at fixed keys, every split's numbers under `splits`; `stages`; `executed`;
    `problems`: every gap in words.

    Raises UserError if run_dir is not there, holds no results, or a row is broken (file, line, field).
    """
    return build_many([run_dir], run_dir / "report")[0]


def build_many(run_dirs: Sequence[Path], out: Path) -> list[dict[str, Any]]:
    """As `build` for several runs: one report under `out` with all of them side by side, a summary.json in each run.

    With several runs (seeds), mean and deviation over them are added where all runs answered the same bugs in full.
    """
    from boostapr.report import html, markdown  # matplotlib and jinja2: only where a report is written
    from boostapr.report.view import view

    runs = [load_run(path) for path in run_dirs]
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:  # seed-1/demo and seed-2/demo
            run.name = "/".join(run.path.resolve().parts[-2:])
        if not run.systems:
            raise UserError(f"{run.path}/eval: no results.jsonl of any system. Run the evaluate stage first")
    summaries = [summarize(run) for run in runs]
    for run, summary in zip(runs, summaries, strict=True):
        write_json(run.path / "summary.json", summary)
    report = view(runs, summaries)
    write_atomic(out / "index.html", html.render(report))
    write_atomic(out / "report.md", markdown.render(report))
    return summaries


def table(summary: Mapping[str, Any]) -> Table:
    """The systems of a summary side by side, as printed at the end of a run."""
    splits = list(dict.fromkeys(split for found in summary["systems"].values() for split in found))
    result = Table(title=f"{summary['run']}: share of bugs solved (95% interval)")
    result.add_column("system")
    for split in splits:
        n = next(found[split]["n"] for found in summary["systems"].values() if split in found)
        for measure in ("pass@1", "pass@4", "valid diffs"):
            result.add_column(f"{measure}\n{split} (n={n})", justify="right")
    for system, found in summary["systems"].items():
        cells = []
        for split in splits:
            cells += [_cell(found.get(split), key) for key in ("pass@1", "pass@4", "valid_diff_rate")]
        result.add_row(terms.system_name(system), *cells)
    sentences = [terms.verdict(c) for c in summary["comparisons"].values()]
    result.caption = "\n".join([*sentences, *(f"Note: {p}" for p in summary["problems"])])
    result.caption_justify = "left"
    return result


def _cell(entry: Mapping[str, Any] | None, key: str) -> str:
    if entry is None:
        return "not run"
    if entry[key] is None:
        return f"partial ({entry['answered']}/{entry['n']})" if entry["missing"] else "n/a"
    low, high = entry[f"{key}_ci95"]
    text = terms.percent(entry[key])
    return text if key == "valid_diff_rate" else f"{text}\n{100 * low:.0f}–{100 * high:.0f}"
