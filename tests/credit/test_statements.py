"""Statement granularity on pieces of Python and Java, readable or not (issue 3, point 3)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boostapr.credit import statement_units, units
from boostapr.patches import parse_patch


def diff(path: str, *lines: str) -> bytes:
    """A one-hunk diff of the given lines, counts made to fit."""
    old = sum(line[:1] in " -" for line in lines)
    new = sum(line[:1] in " +" for line in lines)
    body = "".join(line + "\n" for line in lines)
    return f"--- a/{path}\n+++ b/{path}\n@@ -5,{old} +5,{new} @@\n{body}".encode()


def texts(response: bytes) -> list[bytes]:
    patch = parse_patch(response)
    return [b"".join(response[a:b] for a, b in unit.ranges) for unit in units(patch, "statement")]


def test_two_statements_of_one_span_are_two_units() -> None:
    """One span, two replaced statements: each old statement goes with the new one in its place."""
    response = diff("f.py", " def f(x):", "-    a = 1", "-    b = 2", "+    a = 3", "+    b = 4", "     return a + b")
    assert texts(response) == [b"-    a = 1\n+    a = 3\n", b"-    b = 2\n+    b = 4\n"]


def test_one_statement_in_two_spans_is_one_unit() -> None:
    """A call over several lines, of which two are edited with a line between that stays."""
    response = diff("f.py", " call(", "-    1,", "+    10,", "     2,", "-    3,", "+    30,", " )")
    patch = parse_patch(response)
    (unit,) = units(patch, "statement")
    assert len(patch.spans) == 2 and unit.spans == (0, 1) and len(unit.ranges) == 2


def test_a_compound_statement_has_only_its_own_lines() -> None:
    """The `if` line and the line below it are different statements."""
    response = diff("f.py", "+if x:", "+    y = 1", "+    z = 2", " w = 3")
    assert texts(response) == [b"+if x:\n", b"+    y = 1\n", b"+    z = 2\n"]


PIECES = [
    ("starts inside a block", (" " * 9 + "return 1", "+    x = 2", "+    y = 3", "     return 2"), 2),
    ("starts with else", ("     else:", "+        x = 1", "+        y = 2"), 2),
    ("starts with except", (" except ValueError:", "-    pass", "+    raise"), 1),
    ("ends with a header", ("+x = 1", "+for i in y:"), 2),
    ("comments and blank lines", ("+# why", "+x = 1", "+", "+y = 2"), 2),
]


@pytest.mark.parametrize(("lines", "count"), [p[1:] for p in PIECES], ids=[p[0] for p in PIECES])
def test_pieces_of_python_are_read(lines: tuple[str, ...], count: int) -> None:
    """Hunks begin and end anywhere; that alone is no reason to fall back."""
    found, whole = statement_units(parse_patch(diff("f.py", *lines)))
    assert (len(found), whole) == (count, 0)


@pytest.mark.parametrize(("path", "count"), [("f.py", 1), ("f.txt", 2)])
def test_what_cannot_be_read_stays_whole_and_is_counted(path: str, count: int) -> None:
    """Broken Python (here the new side; the old one is fine) and other languages: the span is the unit."""
    response = diff(path, " x = 1", "+y = (", "+z = ]", " w = 2", "-v = 3")
    patch = parse_patch(response)
    found, whole = statement_units(patch)
    assert [unit.ranges for unit in found] == [patch.ranges(0), patch.ranges(1)] and whole == count


def test_java_statements_even_between_errors() -> None:
    """tree-sitter goes on after what does not parse."""
    response = diff(
        "F.java",
        " class F {",
        "   int f(int x) {",
        "-    int a = 1;",
        "-    g(a);",
        "+    int a = 2;",
        "+    h(a);",
        "     return a +",
    )
    assert texts(response) == [b"-    int a = 1;\n+    int a = 2;\n", b"-    g(a);\n+    h(a);\n"]


CODE = st.sampled_from(
    [
        "x = 1",
        "    y = 2",
        "        return (",
        "    )",
        "else:",
        "if x:",
        "def f():",
        "@d",
        '"""',
        "",
        "# c",
        "\tz",
        "int a = 1;",
        "}",
        "{",
        "for (;;) {",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(" -+"), CODE), min_size=1, max_size=12),
    st.sampled_from(["f.py", "F.java", "f.c"]),
)
def test_units_share_out_the_edited_lines(lines: list[tuple[str, str]], path: str) -> None:
    """Whatever the code: units are disjoint, and together they are exactly the spans."""
    response = diff(path, *(sign + code for sign, code in lines))
    patch = parse_patch(response)
    found = units(patch, "statement")
    ranges = sorted(r for unit in found for r in unit.ranges)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    edited = sorted(r for i in range(len(patch.spans)) for r in patch.ranges(i))
    covered = {i for a, b in ranges for i in range(a, b)}
    assert covered == {i for a, b in edited for i in range(a, b)}
