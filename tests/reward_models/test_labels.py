"""The cascade of section 3.3.3: which spans of a failing patch are blamed, and on what evidence."""

import pytest

from boostapr.outcomes import Failure, Frame, Outcome, Status
from boostapr.patches import parse_patch
from reward_models.labels import LabelSource, SpanLabel, label_spans

STATS = """\
LIMIT = 3

def clean(xs):
    return [x for x in xs if x]

def mean(xs):
    kept = clean(xs)
    return sum(kept) / len(kept)

def top(xs):
    return sorted(xs)[-LIMIT:]

def spread(xs):
    return max(xs) - min(xs)

class Stack:
    def __init__(self):
        self.items = []

    def push(self, x):
        self.items.append(x)

    def size(self):
        return len(self.items)
"""
TEST = """\
import unittest
import stats
from stats import Stack


class TestStats(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(stats.mean([1, 2]), 1.5)

    def test_top(self):
        result = stats.top([1, 2, 3, 4])
        unrelated = stats.spread([1, 2])
        self.assertEqual(result, [2, 3, 4])

    def test_stack(self):
        stack = Stack()
        stack.push(3)
        self.assertEqual(
            len(stack.items),
            1,
        )

    def test_raises(self):
        with self.assertRaises(ValueError):
            stats.spread([])
"""
LINES = {name: number for number, name in enumerate(STATS.split("\n"), start=1)}
TEST_LINES = {name.strip(): number for number, name in enumerate(TEST.split("\n"), start=1)}

MEAN, CLEAN, TOP, SPREAD = (
    "    kept = clean(xs)",
    "    return [x for x in xs if x]",
    "    return sorted(xs)[-LIMIT:]",
    "    return max(xs) - min(xs)",
)


def patch_of(*edits: tuple[str, list[str], list[str]], path: str = "stats.py", shift: int = 0) -> bytes:
    """A diff with one hunk per edit: (context line, old lines under it, new lines)."""
    text, moved = f"--- a/{path}\n+++ b/{path}\n", 0
    for context, old, new in edits:
        line = LINES[context] + shift
        text += f"@@ -{line},{1 + len(old)} +{line + moved},{1 + len(new)} @@\n {context}\n"
        text += "".join(f"-{x}\n" for x in old) + "".join(f"+{x}\n" for x in new)
        moved += len(new) - len(old)
    return text.encode()


def replace(line: str, new: str = "    return 0") -> tuple[str, list[str], list[str]]:
    return STATS.split("\n")[LINES[line] - 2], [line], [new]


def mismatch(test: str, statement: str) -> Failure:
    """What a value mismatch leaves: the test's own frame and nothing else."""
    frame = Frame("test_stats.py", TEST_LINES[statement], test, is_assertion=True)
    return Failure(f"test_stats.TestStats::{test}", "AssertionError: 1 != 2", statement, (frame,))


def failed(*failures: Failure) -> Outcome:
    return Outcome(Status.TESTS_FAILED, failures=failures, exit_code=1)


def labels(response: bytes, outcome: Outcome, with_tests: bool = True) -> list[SpanLabel]:
    patch = parse_patch(response)
    return label_spans(patch, outcome, {"stats.py": STATS}, {"test_stats.py": TEST} if with_tests else {})


def values(response: bytes, outcome: Outcome, with_tests: bool = True) -> tuple[list[int], LabelSource]:
    found = labels(response, outcome, with_tests)
    assert len({label.source for label in found}) == 1
    return [label.value for label in found], found[0].source


MEAN_FAILS = mismatch("test_mean", "self.assertEqual(stats.mean([1, 2]), 1.5)")


def test_every_span_of_a_passing_patch_is_positive() -> None:
    response = patch_of(replace(MEAN), replace(TOP))
    assert values(response, Outcome(Status.RESOLVED, exit_code=0)) == ([1, 1], LabelSource.PASSING)


def test_value_mismatch_blames_the_called_function_and_what_it_calls() -> None:
    """`mean` has returned when the assertion fails: no frame names it. `clean` is called by `mean`, `top` is not."""
    response = patch_of(replace(CLEAN), replace(MEAN, "    kept = clean(xs[1:])"), replace(TOP))
    assert values(response, failed(MEAN_FAILS)) == ([-1, -1, 0], LabelSource.ASSERTION_TRACE)


def test_value_mismatch_follows_the_patched_calls_not_the_old_ones() -> None:
    """The patch makes `mean` call `top` instead of `clean`: now `top` is on the path and `clean` is not."""
    response = patch_of(replace(CLEAN), replace(MEAN, "    kept = top(xs)"), replace(TOP))
    assert values(response, failed(MEAN_FAILS)) == ([0, -1, -1], LabelSource.ASSERTION_TRACE)


def test_value_mismatch_on_a_variable_finds_the_call_that_made_it() -> None:
    """`assertEqual(result, ...)` names no function; `result = stats.top(...)` above it does, `unrelated` has no part."""
    failure = mismatch("test_top", "self.assertEqual(result, [2, 3, 4])")
    response = patch_of(replace(TOP), replace(SPREAD))
    assert values(response, failed(failure)) == ([-1, 0], LabelSource.ASSERTION_TRACE)


def test_value_mismatch_follows_calls_that_change_a_value_in_place() -> None:
    """The assertion spans lines and looks at `stack.items`; `stack.push(3)` and the constructor put them there."""
    frame = Frame("test_stats.py", TEST_LINES["len(stack.items),"], "test_stack", is_assertion=True)
    failure = Failure("test_stats.TestStats::test_stack", "AssertionError", "len(stack.items),", (frame,))
    push, init, size = "        self.items.append(x)", "        self.items = []", "        return len(self.items)"
    response = patch_of(
        replace(init, "        self.items = [0]"), replace(push, "        pass"), replace(size, "        return 0")
    )
    assert values(response, failed(failure)) == ([-1, -1, 0], LabelSource.ASSERTION_TRACE)


def test_missing_exception_blames_the_body_of_assert_raises() -> None:
    """The failing line is the `with`; the call that should have raised stands below it."""
    failure = mismatch("test_raises", "with self.assertRaises(ValueError):")
    response = patch_of(replace(TOP), replace(SPREAD))
    assert values(response, failed(failure)) == ([0, -1], LabelSource.ASSERTION_TRACE)


def test_without_the_tests_source_the_failing_line_is_read() -> None:
    """A benchmark in a repository gives no test files; the traceback's source line is all there is."""
    response = patch_of(replace(CLEAN), replace(MEAN, "    kept = clean(xs[1:])"), replace(TOP))
    assert values(response, failed(MEAN_FAILS), with_tests=False) == ([-1, -1, 0], LabelSource.ASSERTION_TRACE)


def test_a_cut_source_line_still_names_its_functions() -> None:
    failure = Failure("t::t", "AssertionError", "self.assertEqual(stats.top([1,", (Frame("gone.py", 9, "t", True),))
    response = patch_of(replace(MEAN), replace(TOP))
    assert values(response, failed(failure)) == ([0, -1], LabelSource.ASSERTION_TRACE)


def test_a_changed_constant_is_on_the_path_of_the_function_that_reads_it() -> None:
    response = b"--- a/stats.py\n+++ b/stats.py\n@@ -1,2 +1,2 @@\n-LIMIT = 3\n+LIMIT = 4\n \n"
    failure = mismatch("test_top", "self.assertEqual(result, [2, 3, 4])")
    assert values(response, failed(failure)) == ([-1], LabelSource.ASSERTION_TRACE)
    assert values(response, failed(MEAN_FAILS)) == ([0], LabelSource.ASSERTION_TRACE)


def test_spans_off_every_failing_path_are_neutral() -> None:
    """The bug was elsewhere and is still there: no evidence against this edit."""
    assert values(patch_of(replace(TOP)), failed(MEAN_FAILS)) == ([0], LabelSource.ASSERTION_TRACE)


def test_several_failing_tests_add_up() -> None:
    top_fails = mismatch("test_top", "self.assertEqual(result, [2, 3, 4])")
    response = patch_of(replace(MEAN), replace(TOP), replace(SPREAD))
    assert values(response, failed(MEAN_FAILS, top_fails)) == ([-1, -1, 0], LabelSource.ASSERTION_TRACE)


def test_an_assertion_inside_the_code_uses_its_real_frames() -> None:
    """`assert` in `clean`, reached from `mean`: both frames are real, so nothing is guessed (`top` stays neutral)."""
    frames = (
        Frame("test_stats.py", 8, "test_mean"),
        Frame("stats.py", LINES[MEAN], "mean"),
        Frame("stats.py", LINES[CLEAN], "clean", is_assertion=True),
    )
    failure = Failure("t::t", "AssertionError", "self.assertEqual(stats.mean(stats.top([1])), 1)", frames)
    response = patch_of(replace(CLEAN, "    assert not xs"), replace(TOP))
    assert values(response, failed(failure)) == ([-1, 0], LabelSource.ASSERTION_TRACE)


def test_an_exception_without_assertion_is_judged_by_function() -> None:
    """A TypeError in `clean`, called by `mean`: both functions appear in the traceback, `top` does not."""
    frames = (
        Frame("test_stats.py", 8, "test_mean"),
        Frame("stats.py", LINES[MEAN], "mean"),
        Frame("stats.py", LINES[CLEAN], "clean"),
    )
    failure = Failure("t::t", "TypeError: no", "self.assertEqual(stats.mean([1, 2]), 1.5)", frames)
    response = patch_of(replace(CLEAN), replace(MEAN, "    kept = clean(None)"), replace(TOP))
    assert values(response, failed(failure)) == ([-1, -1, 0], LabelSource.FUNCTION_LEVEL)


def test_frames_are_read_in_the_patched_file() -> None:
    """Three lines inserted in `clean` move `top` down; its frame's line lay in `mean` before the patch."""
    insert = ("def clean(xs):", [], ["    if not xs:", "        return []", "    xs = list(xs)"])
    frame = Frame("stats.py", LINES[TOP] + 3, "top")
    response = patch_of(insert, replace(MEAN, "    kept = xs"), replace(TOP, "    return xs[0].a"))
    outcome = failed(Failure("t::t", "AttributeError", "x", (frame,)))
    assert values(response, outcome) == ([0, 0, -1], LabelSource.FUNCTION_LEVEL)


def test_a_hunk_that_git_found_elsewhere_is_followed_there() -> None:
    """The header is three lines off; git applies it by its context, and so must the labels."""
    response = patch_of(replace(TOP), shift=-3)
    frame = Frame("stats.py", LINES[TOP], "top")
    assert values(response, failed(Failure("t::t", "TypeError", "x", (frame,)))) == ([-1], LabelSource.FUNCTION_LEVEL)


def test_a_pure_deletion_belongs_to_the_function_it_was_taken_from() -> None:
    """Nothing of the span is left in the patched file, and the line after it is another function's."""
    response = patch_of(("    kept = clean(xs)", ["    return sum(kept) / len(kept)"], []))
    assert values(response, failed(MEAN_FAILS)) == ([-1], LabelSource.ASSERTION_TRACE)
    top_fails = mismatch("test_top", "self.assertEqual(result, [2, 3, 4])")
    assert values(response, failed(top_fails)) == ([0], LabelSource.ASSERTION_TRACE)


def test_methods_are_told_apart_by_line() -> None:
    """Two functions of one name: the frame's line decides."""
    source = "class A:\n    def get(self):\n        return 1\n\nclass B:\n    def get(self):\n        return 2\n"
    response = (
        b"--- a/m.py\n+++ b/m.py\n@@ -2,2 +2,2 @@\n     def get(self):\n-        return 1\n+        return 3\n"
        b"@@ -6,2 +6,2 @@\n     def get(self):\n-        return 2\n+        return x\n"
    )
    outcome = failed(Failure("t::t", "NameError", "x", (Frame("m.py", 7, "get"),)))
    found = label_spans(parse_patch(response), outcome, {"m.py": source}, {})
    assert [label.value for label in found] == [0, -1]


def test_a_new_file_is_indexed_too() -> None:
    response = b"--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+def f():\n+    return x\n"
    outcome = failed(Failure("t::t", "NameError", "x", (Frame("new.py", 2, "f"),)))
    found = label_spans(parse_patch(response), outcome, {}, {})
    assert found == [SpanLabel(-1, LabelSource.FUNCTION_LEVEL)]


def test_a_file_that_no_longer_parses_is_blamed_where_the_error_is() -> None:
    response = patch_of(replace(MEAN, "    kept = = 3"), replace(TOP))
    frame = Frame("stats.py", LINES[MEAN], "<module>")
    outcome = Outcome(Status.COMPILE_FAILED, failures=(Failure("t::t", "SyntaxError", "", (frame,)),), exit_code=1)
    assert values(response, outcome) == ([-1, 0], LabelSource.FUNCTION_LEVEL)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Status.APPLY_FAILED),
        Outcome(Status.TIMEOUT),
        Outcome(Status.SPOOFED, failures=(Failure("t::t", "no trace"),)),
        failed(Failure("t::t", "AssertionError", "self.fail()", (Frame("test_other.py", 1, "t", True),))),
        failed(Failure("t::t", "KeyError", "", (Frame("elsewhere.py", 1, "g"),))),
    ],
    ids=["not applied", "no trace", "spoofed", "assertion that calls nothing", "traceback outside the patch"],
)
def test_without_evidence_every_span_gets_the_same_label(outcome: Outcome) -> None:
    response = patch_of(replace(MEAN), replace(TOP))
    assert values(response, outcome) == ([-1, -1], LabelSource.UNIFORM)


def test_an_infra_outcome_is_refused() -> None:
    """The machine's fault must never become a label."""
    with pytest.raises(ValueError, match="infra"):
        labels(patch_of(replace(MEAN)), Outcome(Status.INFRA, detail="disk full"))


def test_labels_of_no_python_are_uniform() -> None:
    response = b"--- a/A.java\n+++ b/A.java\n@@ -1,1 +1,1 @@\n-int a = 1;\n+int a = 2;\n"
    outcome = failed(Failure("t::t", "AssertionError", "x", (Frame("A.java", 1, "a", True),)))
    found = label_spans(parse_patch(response), outcome, {"A.java": "int a = 1;\n"}, {})
    assert found == [SpanLabel(-1, LabelSource.UNIFORM)]


def test_a_response_without_spans_has_no_labels() -> None:
    assert labels(b"I do not know.", Outcome(Status.FORMAT)) == []
