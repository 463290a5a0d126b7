"""A patch with the credit that its lines got: from R_seq's score, R_line's span weights (Eq. 5) and token rewards (Eq. 8).

Credit is stored by the evaluate stage in a row's `credit`:

    {"seq": float, "format_penalty": float, "spans": [{"start", "end", "score", "weight"}], "tokens": [[start, end, reward]]}

Ranges are bytes of the response; `format_penalty` and `tokens` may be absent. A span carries seq * weight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from boostapr.patches import parse_patch
from boostapr.report.data import Row

MAX_LINES = 60


@dataclass(frozen=True)
class SpanCredit:
    """Bytes [start, end) of the response, R_line's raw score and its weight (the weights of a patch sum to 1)."""

    start: int
    end: int
    score: float
    weight: float


@dataclass(frozen=True)
class Piece:
    """Part of a line with its own token reward, or a whole line (reward None)."""

    text: str
    reward: float | None = None


@dataclass(frozen=True)
class Line:
    """One line of the response. kind: add, del, hunk, file, context or text.

    credit: reward carried by the line's span (seq * weight), None if it carries none; opens: first line of that span.
    strength: 0 to 1, how strongly to colour it.
    """

    kind: str
    pieces: tuple[Piece, ...]
    credit: float | None = None
    weight: float | None = None
    score: float | None = None
    opens: bool = False
    strength: float = 0.0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class CreditMap:
    """A response line by line. seq: R_seq's score. note: what the reader should know (why there are no colours, cuts)."""

    lines: tuple[Line, ...]
    seq: float | None
    weights: tuple[float, ...]
    format_penalty: float
    note: str


def credit_map(row: Row, max_lines: int = MAX_LINES) -> CreditMap:
    """The lines of a response with their credit; without stored credit the lines are plain and the note says so.

    Raises ValueError if a stored span does not lie inside the response or the weights do not sum to 1.
    """
    response, credit = row.response, row.credit or {}
    spans = [
        SpanCredit(int(s["start"]), int(s["end"]), float(s["score"]), float(s["weight"]))
        for s in credit.get("spans", ())
    ]
    _check(spans, len(response), row.instance_id)
    seq = float(credit["seq"]) if "seq" in credit else None
    tokens = [(int(a), int(b), float(r)) for a, b, r in credit.get("tokens", ())]
    edits = [(s.start, s.end) for s in spans] or [(s.start, s.end) for s in parse_patch(response).spans]
    lines = _lines(response, edits, spans, seq, tokens)
    note = ""
    if not credit:
        note = "No credit was stored with this answer, so its lines are not coloured."
    elif not spans:
        note = "The answer does not parse as a patch: the whole score went to its last token, and no line is coloured."
    if len(lines) > max_lines:
        note = f"{note} The first {max_lines} of {len(lines)} lines are shown.".strip()
        lines = lines[:max_lines]
    return CreditMap(tuple(lines), seq, tuple(s.weight for s in spans), float(credit.get("format_penalty", 0.0)), note)


def _check(spans: Sequence[SpanCredit], length: int, instance: str) -> None:
    for span in spans:
        if not 0 <= span.start < span.end <= length:
            raise ValueError(f"{instance}: span [{span.start}, {span.end}) lies outside the response of {length} bytes")
    total = sum(span.weight for span in spans)
    if spans and abs(total - 1) > 1e-3:
        raise ValueError(f"{instance}: the weights of the {len(spans)} spans sum to {total:.4f}, not to 1 (Eq. 5)")


def _lines(
    response: bytes,
    edits: Sequence[tuple[int, int]],
    spans: Sequence[SpanCredit],
    seq: float | None,
    tokens: Sequence[tuple[int, int, float]],
) -> list[Line]:
    ordered_edits = sorted(edits)
    starts = [start for start, _ in ordered_edits]
    by_start = {span.start: span for span in spans}
    largest = max((abs(reward) for _, _, reward in tokens), default=0.0)
    lines, position = [], 0
    for raw in response.split(b"\n"):  # lines end at \n only
        end = position + len(raw)
        at = bisect_right(starts, position) - 1
        edit = ordered_edits[at] if at >= 0 and position < ordered_edits[at][1] else None
        span = by_start.get(edit[0]) if edit else None
        lines.append(
            Line(
                kind=_kind(raw, edit is not None),
                pieces=_pieces(response, position, end, tokens),
                credit=seq * span.weight if span and seq is not None else None,
                weight=span.weight if span else None,
                score=span.score if span else None,
                opens=bool(span and span.start == position),
                # The eye tells faint shades apart badly: a share of 10% must still be seen, and 100% not blind.
                strength=_strength(span, position, end, tokens, largest),
            )
        )
        position = end + 1
    if lines and not lines[-1].text:
        lines.pop()
    return lines


def _strength(
    span: SpanCredit | None, start: int, end: int, tokens: Sequence[tuple[int, int, float]], largest: float
) -> float:
    if span:
        return float(span.weight**0.7)
    inside = [abs(r) for a, b, r in tokens if a < end and b > start]
    return float((max(inside, default=0.0) / largest) ** 0.7) if largest else 0.0


def _pieces(response: bytes, start: int, end: int, tokens: Sequence[tuple[int, int, float]]) -> tuple[Piece, ...]:
    """The line cut at its rewarded tokens; bytes that are no text on their own are shown as replacement characters."""
    pieces, position = [], start
    for first, last, reward in tokens:
        first, last = max(first, position), min(last, end)
        if first >= last or reward == 0:
            continue
        if first > position:
            pieces.append(Piece(_text(response[position:first])))
        pieces.append(Piece(_text(response[first:last]), reward))
        position = last
    if position < end or not pieces:
        pieces.append(Piece(_text(response[position:end])))
    return tuple(pieces)


def _text(raw: bytes) -> str:
    """Text for the eye: undecodable bytes and control characters become visible, never live."""
    text = raw.decode("utf-8", "replace").expandtabs(4)
    return "".join(c if c.isprintable() or c == " " else "�" for c in text)


def _kind(raw: bytes, edited: bool) -> str:
    if edited:
        return "add" if raw.startswith(b"+") else "del" if raw.startswith(b"-") else "context"
    if raw.startswith(b"@@"):
        return "hunk"
    if raw.startswith((b"--- ", b"+++ ", b"diff ", b"index ")):
        return "file"
    return "context" if raw.startswith(b" ") or not raw else "text"


def required_tests(instance: Mapping[str, Any]) -> list[str]:
    """FAIL_TO_PASS and PASS_TO_PASS of a stored instance."""
    return [*instance.get("FAIL_TO_PASS", ()), *instance.get("PASS_TO_PASS", ())]
