"""Statement units: the edits that belong to one statement, by Python's ast or Java's tree-sitter grammar.

A patch holds pieces of files, so each hunk is read twice: as the old lines and as the new ones. A removed line belongs to
the old statement that it is part of (a compound statement has only its own header lines), an added one to the new one.
In a span with as many old as new statements the two in the same place are one unit, a replacement. A statement whose lines
lie in several spans of a hunk is one unit. Spans in other languages, or in code that does not parse, stay whole.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from boostapr.credit.units import Unit
from boostapr.errors import UserError
from boostapr.patches import Hunk, Patch

# (sign, start, end) of a hunk's line in the response; the newline is included.
Line = tuple[bytes, int, int]
# Number of the statement that each line belongs to (-1: none), or None if the code cannot be read.
Statements = list[int] | None


def statement_units(patch: Patch) -> tuple[list[Unit], int]:
    """(units in order of their first byte, number of spans that had to stay whole)."""
    units: list[Unit] = []
    whole = 0
    hunks = patch.span_table()[:, 1]
    for number, hunk in enumerate(patch.hunks):
        first, last = hunks.searchsorted([number, number + 1])
        found = _hunk_units(patch, hunk, list(range(int(first), int(last))))
        whole += sum(kept for _, kept in found)
        units += [unit for unit, _ in found]
    return sorted(units, key=lambda unit: unit.ranges[0]), whole


def _hunk_units(patch: Patch, hunk: Hunk, spans: list[int]) -> list[tuple[Unit, bool]]:
    """(unit, whether it is a span that stayed whole) of one hunk."""
    lines = list(_lines(patch.response, hunk.body, hunk.end))
    read = _reader(hunk.path)
    sides: list[dict[int, int] | None] = (
        [_by_offset(patch.response, lines, sign, read) for sign in (b"-", b"+")] if read else [None, None]
    )
    groups: dict[tuple[int, int], int] = {}  # (side, statement) -> group
    members: list[list[tuple[int, int, int]]] = []  # of each group: (start, end, span)
    kept: list[tuple[Unit, bool]] = []
    for span in spans:
        ranges = patch.ranges(span)
        edits = [line for line in lines if line[0] in (b"-", b"+") and ranges[0][0] <= line[1] < ranges[-1][1]]
        keys = _keys(edits, sides)
        if keys is None:
            kept.append((Unit(ranges, (span,)), True))
            continue
        orders = [list(dict.fromkeys(key for key in keys if key[0] == side)) for side in (0, 1)]
        for index, key in enumerate([*orders[0], *orders[1]]):
            place = index - len(orders[0])
            partner = orders[0][place] if place >= 0 and len(orders[0]) == len(orders[1]) else None
            if key not in groups:
                groups[key] = groups[partner] if partner in groups else len(members)
                if groups[key] == len(members):
                    members.append([])
        for (_, start, end), key in zip(edits, keys, strict=True):
            members[groups[key]].append((start, end, span))
    return kept + [(_unit(pieces), False) for pieces in members if pieces]


def _unit(pieces: list[tuple[int, int, int]]) -> Unit:
    ranges: list[tuple[int, int]] = []
    for start, end, _ in sorted(pieces):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return Unit(tuple(ranges), tuple(sorted({span for _, _, span in pieces})))


def _keys(edits: list[Line], sides: list[dict[int, int] | None]) -> list[tuple[int, int]] | None:
    """(side, statement) of each edited line; a line of no statement (blank, comment) goes with a neighbour on its side."""
    found: list[tuple[int, int] | None] = []
    for sign, start, _ in edits:
        side = 1 if sign == b"+" else 0
        statements = sides[side]
        if statements is None:
            return None
        number = statements[start]
        found.append((side, number) if number >= 0 else None)
    if all(key is None for key in found):
        return None
    for order in (range(len(found) - 2, -1, -1), range(1, len(found))):
        step = 1 if order.step == -1 else -1
        for i in order:
            neighbour = found[i + step]
            if found[i] is None and neighbour is not None and edits[i][0] == edits[i + step][0]:
                found[i] = neighbour
    near = next(key for key in found if key is not None)
    return [near if key is None else key for key in found]


def _lines(response: bytes, start: int, end: int) -> Iterator[Line]:
    while start < end:
        stop = response.find(b"\n", start, end) + 1 or end
        yield response[start : start + 1], start, stop
        start = stop


def _by_offset(
    response: bytes, lines: list[Line], sign: bytes, read: Callable[[str], Statements]
) -> dict[int, int] | None:
    """Statement of each line of one side of a hunk, by the line's offset in the response."""
    side = [line for line in lines if line[0] in (b" ", b"\n", sign)]
    text = b"".join(response[start + (mark != b"\n") : end].rstrip(b"\r\n") + b"\n" for mark, start, end in side)
    statements = read(text.decode("utf-8", "replace"))
    if statements is None:
        return None
    return {start: number for (_, start, _), number in zip(side, statements, strict=True)}


def _reader(path: str) -> Callable[[str], Statements] | None:
    if path.endswith((".py", ".pyi")):
        return python_statements
    return java_statements if path.endswith(".java") else None


def python_statements(text: str) -> Statements:
    """Statement numbers of the lines of a piece of Python, which may begin and end inside blocks."""
    rows = text.split("\n")[:-1]
    before = _scaffold(rows)
    # A header at the very end gets a body.
    body = [row for row in rows if row.strip() and not row.lstrip().startswith("#")]
    after = [" " * (_width(body[-1]) + 1) + "pass"] if body and body[-1].rstrip().endswith(":") else []
    # Characters that end a line for Python but not here (form feed and the like) would shift the numbers.
    source = "\n".join([*before, *(_one_line(row) for row in rows), *after])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    numbers = [-1] * (len(before) + len(rows) + 1)
    pending: list[ast.AST] = [tree]
    count = 0
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            for line in range(first, min(node.end_lineno or first, len(numbers)) + 1):
                numbers[line - 1] = count
            count += 1
        # Children overwrite their parents, which keep their own lines; outer statements come first.
        pending.extend(ast.iter_child_nodes(node))
    return numbers[len(before) : len(before) + len(rows)]


def _one_line(row: str) -> str:
    return "".join(" " if c in "\f\v\r\x1c\x1d\x1e\x85\u2028\u2029" else c for c in row)


def _width(row: str) -> int:
    expanded = row.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


def _indent(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]


def _scaffold(rows: list[str]) -> list[str]:
    """Headers to put before a piece of Python so that its first lines may be indented, or begin with `else`."""
    levels: list[tuple[int, str, str]] = []  # (width, indentation, header), from the inside out
    for row in rows:
        word = row.strip()
        if not word or word.startswith("#"):
            continue
        width = _width(row)
        closing = word.startswith(("else", "elif", "except", "finally"))
        if not levels or width < levels[-1][0]:
            header = "try:" if word.startswith(("except", "finally")) else "if 1:"
            levels.append((width, _indent(row), header if closing or levels else ""))
            if width == 0:
                break
    if not levels:
        return []
    result = [f"{indent}{header}" for _, indent, header in reversed(levels[1:])]
    width, indent, header = levels[0]
    if header:
        result += [f"{indent}{header}", f"{indent} pass"]
    if levels[-1][0] > 0:
        result.insert(0, "if 1:")
    return result


_JAVA_DECLARATIONS = frozenset(
    {
        "local_variable_declaration",
        "field_declaration",
        "method_declaration",
        "constructor_declaration",
        "class_declaration",
        "interface_declaration",
        "enum_declaration",
        "record_declaration",
        "annotation_type_declaration",
        "import_declaration",
        "package_declaration",
        "explicit_constructor_invocation",
        "static_initializer",
        "enum_constant",
    }
)


@cache
def _java_parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_java
    except ImportError as error:
        raise UserError(
            f"granularity=statement reads Java with tree-sitter, which is not installed ({error}): "
            "pip install tree-sitter tree-sitter-java"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_java.language()))


def java_statements(text: str) -> Statements:
    """Statement numbers of the lines of a piece of Java; None if nothing in it is a statement. Errors are skipped over."""
    numbers = [-1] * text.count("\n")
    pending = [_java_parser().parse(text.encode()).root_node]
    count = 0
    while pending:
        node = pending.pop()
        if node.type in _JAVA_DECLARATIONS or node.type.endswith("_statement"):
            for line in range(node.start_point[0], min(node.end_point[0] + 1, len(numbers))):
                numbers[line] = count
            count += 1
        pending += reversed(node.children)
    return numbers if count else None
