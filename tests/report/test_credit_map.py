"""Lines of a patch with the credit that they got: the right lines, the right amounts, nothing for the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import FIRST_SPAN, RIGHT, SECOND_SPAN, A, R, credit, row

from boostapr.report.credit_map import credit_map
from boostapr.report.data import Row


def stored(response: str, said: dict[str, Any] | None) -> Row:
    return Row("bug-000", 0, "greedy", response.encode(), "valid", True, {"status": "resolved", "tests": {}}, said)


def test_spans_carry_score_times_weight_and_other_lines_nothing() -> None:
    """0.8 x 75% on the first span's two lines, 0.8 x 25% on the second's three; headers and context stay plain."""
    found = credit_map(stored(RIGHT, credit(R)))
    by_text = {line.text: line for line in found.lines}
    assert by_text["-    total = 1"].credit == pytest.approx(0.6)
    assert by_text["+    return total / count"].credit == pytest.approx(0.2)
    plain = [line for line in found.lines if line.kind in ("hunk", "file", "context")]
    assert len(plain) == 7 and all(line.credit is None and line.strength == 0 for line in plain)
    assert [line.text for line in found.lines if line.opens] == ["-    total = 1", "-    return total"]
    assert by_text["-    total = 1"].strength > by_text["-    return total"].strength > 0


def test_the_text_is_the_response_line_by_line() -> None:
    assert "\n".join(line.text for line in credit_map(stored(RIGHT, credit(R))).lines) + "\n" == RIGHT


def test_content_that_looks_like_a_header_keeps_its_credit() -> None:
    """A removed line that reads `-- x` shows as `--- x`; it is an edit, not a file header."""
    response = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,1 @@\n select 1\n--- x\n"
    start = response.index("--- x")
    said = {"seq": 1.0, "spans": [{"start": start, "end": len(response), "score": 0.0, "weight": 1.0}]}
    line = credit_map(stored(response, said)).lines[-1]
    assert (line.kind, line.credit) == ("del", 1.0)


def test_without_stored_credit_the_note_says_why_there_are_no_colours() -> None:
    found = credit_map(stored(RIGHT, None))
    assert "No credit was stored" in found.note and found.seq is None
    assert all(line.strength == 0 for line in found.lines)
    assert {line.text for line in found.lines if line.kind == "add"} == {line for line in RIGHT.split("\n") if line[:1] == "+" and line[:3] != "+++"}  # fmt: skip


def test_an_answer_that_does_not_parse_says_where_the_score_went() -> None:
    found = credit_map(stored(str(row(0, A)["response"]), credit(A)))
    assert "last token" in found.note and found.seq == -0.4


def test_token_rewards_cut_lines_at_their_bytes() -> None:
    """Tokens that cross a line end are cut there, and half a character is shown as a replacement, never lost silently."""
    response = RIGHT.replace("total = 0", "total = é")
    at = response.encode().index("é".encode())
    said = credit(R) | {"tokens": [[at - 2, at + 1, 0.3], [at + 1, at + 6, 0.1]]}
    said["spans"] = [{"start": FIRST_SPAN[0], "end": FIRST_SPAN[1] + 1, "score": 0.0, "weight": 1.0}]
    lines = credit_map(stored(response, said)).lines
    pieces = next(line for line in lines if line.text.startswith("+    total")).pieces
    assert [(p.text, p.reward) for p in pieces] == [("+    total ", None), ("= \ufffd", 0.3), ("\ufffd", 0.1)]
    assert lines[6].text == "     for value in values:" and lines[6].pieces[0].reward == 0.1


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 10_000, 1.0)], "outside the response"),
        ([(*FIRST_SPAN, 0.75), (*SECOND_SPAN, 0.5)], r"sum to 1\.2500"),
    ],
)
def test_impossible_credit_is_refused(spans: list[tuple[int, int, float]], message: str) -> None:
    """Weights that do not sum to 1 or ranges outside the response mean that the stage and the report disagree."""
    said = {"seq": 1.0, "spans": [{"start": a, "end": b, "score": 0.0, "weight": w} for a, b, w in spans]}
    with pytest.raises(ValueError, match=message):
        credit_map(stored(RIGHT, said))


@given(
    st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.floats(-1, 1)), max_size=8)
)
def test_any_bytes_can_be_shown(response: bytes, tokens: list[tuple[int, int, float]]) -> None:
    """No response and no token boundaries crash the report, and control characters never reach the page."""
    tokens = sorted((a, b, r) for a, b, r in tokens if a < b)
    found = credit_map(
        Row("x", 0, "greedy", response, "not_a_diff", False, {}, {"seq": 0.0, "spans": [], "tokens": tokens})
    )
    assert all(c.isprintable() for line in found.lines for c in line.text)


def test_long_answers_are_cut_and_say_so() -> None:
    found = credit_map(stored("word\n" * 200, None), max_lines=50)
    assert len(found.lines) == 50 and "first 50 of 200 lines" in found.note
