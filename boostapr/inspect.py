"""`boostapr inspect FILE|-`: how a response is read: format class, penalty, repairs, files, hunks and spans.

With a JSON-lines file of responses (candidates.jsonl, results.jsonl): how many fell in each format class, and whether the
class that was recorded beside each agrees.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boostapr.config import load_section
from boostapr.credit import CreditSettings, format_penalty, units
from boostapr.errors import UserError
from boostapr.patches import REPAIR_TEXT, Patch, PatchFormat, Span, parse_patch


def main(argv: Sequence[str]) -> int:
    """Show how a patch is read, and which of its bytes are edits that can earn credit."""
    parser = argparse.ArgumentParser(prog="boostapr inspect", description=main.__doc__)
    parser.add_argument("file", help="a response (a patch); - for standard input; or a .jsonl file of responses")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("settings", nargs="*", help="credit settings, such as credit.format_penalty.recoverable=-0.2")
    arguments = parser.parse_args(argv)
    settings = load_section(CreditSettings, "credit", ["name=inspect", *arguments.settings])
    if arguments.file.endswith(".jsonl"):
        summary = summarize(read_rows(Path(arguments.file)), settings)
        print(json.dumps(summary) if arguments.json else render_summary(summary))
        return 1 if summary["disagreeing"] else 0
    patch = parse_patch(_read(arguments.file))
    if arguments.json:
        print(json.dumps(describe(patch, settings)))
    else:
        print(render(patch, settings, colour=sys.stdout.isatty()))
    return 0


def describe(patch: Patch, settings: CreditSettings) -> dict[str, Any]:
    """JSON-ready description of a parsed response. Offsets are bytes of the response."""
    return {
        "format": patch.format.value,
        "format_penalty": format_penalty(patch.format, settings.format_penalty),
        "repairs": [repair.value for repair in patch.repairs],
        "problem": patch.problem,
        "problem_line": patch.problem_line,
        "bytes": len(patch.response),
        "files": [
            {
                "path": change.path,
                "old_path": change.old_path,
                "new_path": change.new_path,
                "added": change.added,
                "removed": change.removed,
                "binary": change.is_binary,
                "start": change.start,
                "end": change.end,
            }
            for change in patch.files
        ],
        "hunks": [hunk._asdict() for hunk in patch.hunks],
        "spans": [span._asdict() for span in patch.spans],
        "units": len(units(patch, settings.granularity)),
    }


def render(patch: Patch, settings: CreditSettings, colour: bool) -> str:
    """The description for people: a few lines, then the response with the lines of each span numbered in the margin."""
    penalty = format_penalty(patch.format, settings.format_penalty)
    lines = [f"format   {patch.format} (penalty {penalty:g})"]
    if patch.problem:
        lines.append(f"problem  line {patch.problem_line}: {patch.problem}")
    lines += [f"repair   {REPAIR_TEXT[repair]}" for repair in patch.repairs]
    lines += [
        f"file     {_printable(change.path)}  "
        + ("binary" if change.is_binary else f"+{change.added} -{change.removed}")
        for change in patch.files
    ]
    lines += [f"span {number:3}  {_span(span)}" for number, span in enumerate(patch.spans)]
    return "\n".join([*lines, "", *_marked(patch, colour)])


def _span(span: Span) -> str:
    return (
        f"{_printable(span.path)}: bytes {span.start}-{span.end}, "
        f"old line {span.old_start} (-{span.removed}), new line {span.new_start} (+{span.added})"
    )


def _marked(patch: Patch, colour: bool) -> list[str]:
    """The response, line by line, with the number of the span that a line belongs to."""
    marked, position = [], 0
    ranges = [(start, end, number) for number in range(patch.num_spans) for start, end in patch.ranges(number)]
    following = iter([*ranges, (len(patch.response) + 1, len(patch.response) + 1, -1)])
    start, end, number = next(following)
    for line in patch.response.split(b"\n"):
        while position >= end:
            start, end, number = next(following)
        inside = position >= start
        text = _printable(line.decode("utf-8", "backslashreplace"))
        if colour and inside:
            text = f"\x1b[{32 if line.startswith(b'+') else 31}m{text}\x1b[0m"
        marked.append(f"{number if inside else '':>4} | {text}")
        position += len(line) + 1
    return marked


def _printable(text: str) -> str:
    """Text that cannot drive the terminal: control characters are written as escapes."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {name}: {error.strerror}. Give a file that holds a response, or - for standard input."
        ) from None


def read_rows(path: Path) -> list[tuple[bytes, str | None]]:
    """(response, format class that was recorded or None) of each line of a JSON-lines file.

    Raises UserError with file and line for a line that is not a row with a `response`.
    """
    rows: list[tuple[bytes, str | None]] = []
    for number, line in enumerate(_read(str(path)).splitlines(), start=1):
        try:
            row = json.loads(line)
            raw = row.get("response_base64")
            response = (
                base64.b64decode(raw) if raw is not None else str(row["response"]).encode("utf-8", "surrogatepass")
            )
        except (ValueError, KeyError, AttributeError):
            raise UserError(f"{path}:{number}: not a JSON object with a `response`") from None
        rows.append((response, row.get("format")))
    return rows


def summarize(rows: Sequence[tuple[bytes, str | None]], settings: CreditSettings) -> dict[str, Any]:
    """Counts of format classes and repairs; `last_token`: responses whose score goes to the last token for want of units;
    `disagreeing`: lines (1-based) whose recorded class is another one than `parse_patch` gives."""
    formats: Counter[str] = Counter()
    repairs: Counter[str] = Counter()
    last_token, disagreeing = 0, []
    for number, (response, recorded) in enumerate(rows, start=1):
        patch = parse_patch(response)
        formats[patch.format.value] += 1
        repairs.update(repair.value for repair in patch.repairs)
        last_token += not units(patch, settings.granularity)
        if recorded in set(PatchFormat) and recorded != patch.format:
            disagreeing.append(number)
    return {
        "responses": len(rows),
        "formats": {kind.value: formats[kind.value] for kind in PatchFormat},
        "repairs": dict(repairs),
        "last_token": last_token,
        "disagreeing": disagreeing,
    }


def render_summary(summary: dict[str, Any]) -> str:
    """The summary for people."""
    total = max(summary["responses"], 1)
    lines = [f"{summary['responses']} responses"]
    lines += [f"  {kind:12} {count:6}  {count / total:6.1%}" for kind, count in summary["formats"].items()]
    lines += [f"  repair {repair:14} {count:6}" for repair, count in sorted(summary["repairs"].items())]
    lines.append(f"{summary['last_token']} without units: their whole score goes to the last token")
    if summary["disagreeing"]:
        lines.append(f"recorded class differs in line {', '.join(map(str, summary['disagreeing'][:20]))}")
    return "\n".join(lines)
