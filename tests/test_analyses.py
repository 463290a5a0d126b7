"""The paper's analyses of stored results, each against a small case done by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boostapr import analyses

HEAD = "--- a/m.py\n+++ b/m.py\n"
REFERENCE = HEAD + "@@ -1,2 +1,2 @@\n def f(a):\n-    return a\n+    return a + 1\n"


@dataclass(frozen=True)
class Answer:
    response: bytes
    resolved: bool = True


def patch(new: str) -> bytes:
    return (HEAD + f"@@ -1,2 +1,2 @@\n def f(a):\n-    return a\n+    {new}\n").encode()


def test_overlap_counts_signed_tokens_of_changed_lines() -> None:
    """-{return, a} +{return, a, +, 1} against -{return, a} +{return, 1, +, a, b}: 6 shared of 7; order does not matter."""
    assert analyses.changed_tokens(REFERENCE.encode()) == {"-return", "-a", "+return", "+a", "++", "+1"}
    assert analyses.jaccard(patch("return 1 + a"), REFERENCE.encode()) == 1.0
    assert analyses.jaccard(patch("return 1 + a + b"), REFERENCE.encode()) == pytest.approx(6 / 7)


def test_context_and_headers_do_not_count_as_overlap() -> None:
    """A patch of the same file that changes something else shares no token, however alike the surroundings are."""
    other = HEAD + "@@ -1,2 +1,3 @@\n def f(a):\n+    print(7)\n     return a\n"
    assert analyses.jaccard(other.encode(), REFERENCE.encode()) == 0.0


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_overlap_is_symmetric_and_a_share(first: bytes, second: bytes) -> None:
    assert analyses.jaccard(first, second) == analyses.jaccard(second, first)
    assert 0.0 <= analyses.jaccard(first, second) <= 1.0
    assert analyses.jaccard(first, first) == 1.0


def test_only_solved_bugs_with_a_reference_count() -> None:
    answers = {
        "same": Answer(patch("return a + 1")),
        "far": Answer(patch("x = compute(a, b, c, d, e)")),
        "unsolved": Answer(patch("return a + 1"), resolved=False),
        "no reference": Answer(patch("return a + 1")),
    }
    found = analyses.reference_overlap(answers, {"same": REFERENCE, "far": REFERENCE, "unsolved": REFERENCE})
    assert found is not None
    assert (found.n, found.below_half, set(found.by_instance)) == (2, 0.5, {"same", "far"})
    assert analyses.reference_overlap({"unsolved": answers["unsolved"]}, {"unsolved": REFERENCE}) is None


def test_groups_keep_unanswered_bugs_in_their_denominator() -> None:
    instances = {"1": {"repo": "apache/Lang"}, "2": {"repo": "apache/Lang"}, "3": {"repo": "jfree/Chart"}}
    answers = {"sft": {"1": Answer(b""), "3": Answer(b"", resolved=False)}}
    found = analyses.by_group(answers, instances, analyses.project)
    assert [(g.name, g.n, g.resolved) for g in found] == [("Chart", 1, {"sft": 0}), ("Lang", 2, {"sft": 1})]


def test_a_bug_of_several_kinds_counts_in_each() -> None:
    instances = {
        "1": {"bug_kinds": ["off_by_one", "operator"], "num_bugs": 2},
        "2": {"bug_kinds": ["operator"], "num_bugs": 1},
    }
    answers = {"sft": {"1": Answer(b""), "2": Answer(b"", resolved=False)}}
    kinds = analyses.by_group(answers, instances, analyses.bug_kinds)
    assert [(g.name, g.n, g.resolved["sft"]) for g in kinds] == [("off by one", 1, 1), ("operator", 2, 1)]
    assert [g.name for g in analyses.by_group(answers, instances, analyses.num_bugs)] == ["1 bug", "2 bugs"]


def test_supervision_quality_splits_bugs_as_table_10_does() -> None:
    """Strong: at least half of the failing training spans of the same kind were labelled from an assertion's trace."""
    instances = {"a": {"bug_kinds": ["x"]}, "b": {"bug_kinds": ["y"]}, "c": {"bug_kinds": ["new"]}}
    sources = {
        "x": {"assertion_trace": 6, "uniform": 4},
        "y": {"assertion_trace": 2, "function_level": 8, "passing": 90},
    }
    parts = analyses.supervision_partition(instances, analyses.bug_kinds, sources, threshold=0.5)
    assert parts == {"a": "strong trace analogues", "b": "heuristic-only analogues", "c": "heuristic-only analogues"}
    yes, no = Answer(b""), Answer(b"", resolved=False)
    rows = analyses.solved_by_supervision({"a": no, "b": no, "c": yes}, {"a": yes, "b": no, "c": yes}, parts)
    assert [(r.name.split()[0], r.n, r.baseline, r.system, r.difference.estimate) for r in rows] == [
        ("heuristic-only", 2, 0.5, 0.5, 0.0),
        ("strong", 1, 0.0, 1.0, 1.0),
    ]


def test_a_partition_with_missing_answers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 bugs of the partition lack an answer \(first: b\)"):
        analyses.solved_by_supervision({"a": Answer(b"")}, {"a": Answer(b""), "b": Answer(b"")}, {"a": "s", "b": "s"})
