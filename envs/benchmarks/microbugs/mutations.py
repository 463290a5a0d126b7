"""Kinds of mutation: each turns one place of a commented statement into a plausible bug.

A mutation replaces the exact source text of one syntax node, so that everything else in the file keeps its bytes. Only
statements with a comment behind them are mutated (templates.py says why). `OOD_KINDS` never occur in training.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Place = ast.expr | ast.stmt | ast.keyword  # nodes that know where they stand in the source
Edit = tuple[Place, str]  # a node and the text that takes its place

_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_DIRECTION = {ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}
_EQUALITY = {ast.Eq: "!=", ast.NotEq: "=="}
_MEMBERSHIP = {ast.In: "not in", ast.NotIn: "in"}
_ARITHMETIC = {ast.Add: ["-", "*"], ast.Sub: ["+", "*"], ast.Mult: ["+", "-"]}
_AUGMENTED = {ast.Add: "-=", ast.Sub: "+="}
_METHODS = {"upper": "lower", "lower": "upper", "startswith": "endswith", "endswith": "startswith"}
_EXTREMES = {"max": "min", "min": "max"}


@dataclass(frozen=True)
class Mutation:
    """One bug: the text at [start, end) of the source becomes `text`. `line` is 0-based; `function` is the one it is in."""

    kind: str
    function: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def _src(node: ast.AST) -> str:
    return ast.unparse(node)


def _comparison(table: dict[type[ast.cmpop], str]) -> Callable[[ast.AST, list[str]], Iterator[Edit]]:
    def edits(node: ast.AST, names: list[str]) -> Iterator[Edit]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in table:
            yield node, f"{_src(node.left)} {table[type(node.ops[0])]} {_src(node.comparators[0])}"

    return edits


def _arithmetic_operator(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp):
        for op in _ARITHMETIC.get(type(node.op), []):
            yield node, f"{_src(node.left)} {op} {_src(node.right)}"


def _augmented_operator(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign) and type(node.op) in _AUGMENTED:
        yield node, f"{_src(node.target)} {_AUGMENTED[type(node.op)]} {_src(node.value)}"


def _constant_off_by_one(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and isinstance(node.right.value, int):
        for delta in (1, -1):
            if node.right.value + delta >= 0:
                yield node.right, str(node.right.value + delta)


def _range_bound(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and len(node.args) == 2
    ):
        low, high = node.args
        if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add):
            yield node, f"range({_src(low)}, {_src(high.left)})"
        else:
            yield node, f"range({_src(low)}, {_src(high)} + 1)"
        if isinstance(low, ast.Constant):
            yield node, f"range({1 - int(str(low.value))}, {_src(high)})"


def _boolean_operator(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        yield node, f" {word} ".join(_src(v) for v in node.values)


def _negated_condition(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.If):
        if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
            yield node.test, _src(node.test.operand)
        else:
            yield node.test, f"not {_src(node.test)}"


def _wrong_variable(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        for name in names:
            if name != node.id:
                yield node, name


def _swapped_operands(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        yield node, f"{_src(node.right)} - {_src(node.left)}"


def _wrong_initial_value(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
        for value in (0, 1, 2):
            if value != node.value.value:
                yield node.value, str(value)


def _wrong_return_value(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and node.value is not None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            yield node.value, str(not node.value.value)
        elif _src(node.value) == "-1":
            yield node.value, "0"
            yield node.value, "1"


def _index_offset(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        base, index = _src(node.value), _src(node.slice)
        if index in ("0", "-1"):
            yield node, f"{base}[{'-1' if index == '0' else '0'}]"
        elif isinstance(node.slice, ast.BinOp):
            yield node, f"{base}[{_src(node.slice.left)}]"


def _string_method(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        yield node, f"{_src(node.func.value)}.{_METHODS[node.func.attr]}({', '.join(map(_src, node.args))})"


def _extreme_swap(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
        yield node.func, _EXTREMES[node.func.id]


def _sort_order(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.keyword) and node.arg == "reverse" and isinstance(node.value, ast.Constant):
        yield node.value, str(not node.value.value)


def _slice_bound(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        low, high = node.slice.lower, node.slice.upper
        bound = low or high
        if bound is not None:
            flipped = f":{_src(bound)}" if low is not None else f"{_src(bound)}:"
            yield node, f"{_src(node.value)}[{flipped}]"


def _loop_exit(node: ast.AST, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Break):
        yield node, "continue"
    elif isinstance(node, ast.Continue):
        yield node, "break"


KINDS: dict[str, Callable[[ast.AST, list[str]], Iterator[Edit]]] = {
    "boundary": _comparison(_BOUNDARY),
    "direction": _comparison(_DIRECTION),
    "equality": _comparison(_EQUALITY),
    "membership": _comparison(_MEMBERSHIP),
    "arithmetic_operator": _arithmetic_operator,
    "augmented_operator": _augmented_operator,
    "constant_off_by_one": _constant_off_by_one,
    "range_bound": _range_bound,
    "boolean_operator": _boolean_operator,
    "negated_condition": _negated_condition,
    "wrong_variable": _wrong_variable,
    "swapped_operands": _swapped_operands,
    "wrong_initial_value": _wrong_initial_value,
    "wrong_return_value": _wrong_return_value,
    "index_offset": _index_offset,
    "string_method": _string_method,
    "extreme_swap": _extreme_swap,
    "sort_order": _sort_order,
    "slice_bound": _slice_bound,
    "loop_exit": _loop_exit,
}
OOD_KINDS = frozenset({"extreme_swap", "sort_order", "slice_bound", "loop_exit"})
ORDINARY_KINDS = frozenset(KINDS) - OOD_KINDS


def mutations(source: str, kinds: frozenset[str] | None = None) -> list[Mutation]:
    """Every mutation of the commented statements of `source` (all kinds, or only `kinds`), in the order of the source."""
    lines = source.split("\n")
    offsets = [0]
    for text in lines:
        offsets.append(offsets[-1] + len(text) + 1)
    found: list[Mutation] = []
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        names = _local_names(function)
        for statement in ast.walk(function):
            if not isinstance(statement, ast.stmt) or statement is function:
                continue
            line = statement.lineno - 1
            if "  # " not in lines[line]:
                continue
            for node in _same_line_nodes(statement):
                for kind, edits in KINDS.items():
                    if kinds is not None and kind not in kinds:
                        continue
                    for target, new in edits(node, names):
                        start = offsets[line] + target.col_offset
                        end = offsets[line] + (target.end_col_offset or 0)
                        if source[start:end] != new:
                            found.append(Mutation(kind, function.name, line, start, end, new))
    return sorted(set(found), key=lambda m: (m.start, m.end, m.kind, m.text))


class Choice:
    """Draws mutations, a kind as likely as any other however many mutations it has."""

    def __init__(self, found: list[Mutation]) -> None:
        self._by_kind: dict[str, list[Mutation]] = {}
        for mutation in found:
            self._by_kind.setdefault(mutation.kind, []).append(mutation)

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def draw(self, rng: random.Random) -> Mutation:
        return rng.choice(self._by_kind[rng.choice(sorted(self._by_kind))])


def _same_line_nodes(statement: ast.stmt) -> list[ast.AST]:
    """The statement and what it holds on its own line (not the body of a loop or a condition)."""
    nested = {
        id(n) for child in getattr(statement, "body", []) + getattr(statement, "orelse", []) for n in ast.walk(child)
    }
    return [n for n in ast.walk(statement) if id(n) not in nested]


def _local_names(function: ast.FunctionDef) -> list[str]:
    """Parameters and assigned names that hold a value of their own, in order of appearance."""
    names = [a.arg for a in function.args.args]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
            names.append(node.id)
    return names
