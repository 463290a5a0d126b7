"""`boostapr report RUN...`: the table on the terminal, and summary.json, report/index.html and report/report.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from boostapr import report


def main(argv: Sequence[str]) -> int:
    """Build the report of one run folder, or of several side by side (seeds, algorithms)."""
    parser = argparse.ArgumentParser(prog="boostapr report", description=main.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder, such as runs/demo")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for index.html and report.md (default: RUN/report; with several runs: ./report)",
    )
    arguments = parser.parse_args(argv)
    out = arguments.out or (arguments.runs[0] / "report" if len(arguments.runs) == 1 else Path("report"))
    console = Console(highlight=False)
    for summary in report.build_many(arguments.runs, out):
        console.print(report.table(summary))
    console.print(f"Report: {out / 'index.html'} and {out / 'report.md'}")
    return 0
