"""Which definitions of the changed files a failing test runs through, found by `ast` and without running anything.

A value mismatch (`assertEqual(f(x), y)`) has only the test's own frame in its traceback: `f` had returned long before. So the
call path is rebuilt: the names in the failing assertion's statement, the statements of the test that produced the values it
compares, and then everything that these definitions refer to in turn. References by simple name stand for calls; two
methods of one name are both reached. That errs towards too many spans on the path, never towards a wrong accusation by
a traceback that is not there.
"""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from boostapr.outcomes import Failure

MODULE = ""  # the qualified name of code outside every definition

# (path, qualified name) of a function, class or module-level variable.
Node = tuple[str, str]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass
class _Definition:
    node: Node
    name: str
    first: int
    last: int
    names: set[str] = field(default_factory=set)  # simple names it refers to
    parts: list[Node] = field(default_factory=list)  # what runs along with it: a class's special methods


class SourceIndex:
    """The definitions of some Python files, and what refers to what. Files that do not parse are left out."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._definitions: dict[str, list[_Definition]] = {}
        self._by_name: dict[str, list[_Definition]] = defaultdict(list)
        self._by_node: dict[Node, _Definition] = {}
        for path, text in files.items():
            tree = parse(text) if path.endswith(".py") else None
            if tree is None:
                continue
            found = list(_definitions(path, tree.body, ""))
            self._definitions[path] = found
            for definition in found:
                self._by_name[definition.name].append(definition)
                self._by_node[definition.node] = definition

    def parses(self, path: str) -> bool:
        """False for a file that is absent, no Python, or does not parse."""
        return path in self._definitions

    def enclosing(self, path: str, line: int) -> Node:
        """The innermost definition around a 1-based line, or the module itself."""
        around = [d for d in self._definitions.get(path, ()) if d.first <= line <= d.last]
        return min(around, key=lambda d: d.last - d.first).node if around else (path, MODULE)

    def named(self, path: str, name: str) -> set[Node]:
        """Every definition of that simple name in a file."""
        return {d.node for d in self._by_name.get(name, ()) if d.node[0] == path}

    def reachable(self, names: Iterable[str]) -> set[Node]:
        """The definitions with one of these simple names, and all that they refer to, directly or not."""
        waiting = [definition for name in names for definition in self._by_name.get(name, ())]
        seen: set[Node] = set()
        while waiting:
            definition = waiting.pop()
            if definition.node in seen:
                continue
            seen.add(definition.node)
            waiting += [d for name in definition.names for d in self._by_name.get(name, ())]
            waiting += [self._by_node[node] for node in definition.parts]
        return seen


@functools.lru_cache(maxsize=32)  # the candidates of an instance share its files
def parse(text: str) -> ast.Module | None:
    """The syntax tree, to be read only, or None where Python refuses the text."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def names_behind(failure: Failure, test_files: Mapping[str, str]) -> set[str]:
    """Simple names that a failing assertion depends on.

    With the test's source at hand: the names in the failing statement of every frame inside the tests, and in the earlier
    statements of the same function that made the values in it. Otherwise the words of the failure's `source_line`.
    """
    names: set[str] = set()
    for frame in failure.frames:
        tree = parse(test_files[frame.path]) if frame.path in test_files else None
        if tree is not None:
            names |= _names_in_function(tree, frame.line)
    if names:
        return names
    tree = parse(failure.source_line.strip())
    return _names(tree) if tree is not None else set(_WORD.findall(failure.source_line))


def _definitions(path: str, body: Sequence[ast.stmt], prefix: str) -> Iterator[_Definition]:
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef):
            qualified = f"{prefix}{statement.name}"
            first = min([statement.lineno, *(d.lineno for d in statement.decorator_list)])
            definition = _Definition((path, qualified), statement.name, first, statement.end_lineno or first)
            inner = list(_definitions(path, statement.body, f"{qualified}."))
            if isinstance(statement, ast.ClassDef):
                outside = [s for s in statement.body if not isinstance(s, _Function | ast.ClassDef)]
                for part in [*outside, *statement.bases, *statement.decorator_list]:
                    definition.names |= _names(part)
                definition.parts = [d.node for d in inner if re.fullmatch(r"__\w+__", d.name)]
            else:
                definition.names = _names(statement)
            yield definition
            yield from inner
        elif not prefix and isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for name in {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
                yield _Definition(
                    (path, name), name, statement.lineno, statement.end_lineno or statement.lineno, _names(statement)
                )
        else:  # definitions behind an `if`, `try` or `with`
            blocks = (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
            handlers = (handler.body for handler in getattr(statement, "handlers", []))
            for block in [*blocks, *handlers]:
                yield from _definitions(path, block, prefix)


def _names(tree: ast.AST) -> set[str]:
    """Simple names read or called: `f` and `g` in `m.f(g)`."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def _names_in_function(tree: ast.Module, line: int) -> set[str]:
    """Names in the statement at `line`, and in those before it in the same function that its local values came from."""
    functions = [n for n in ast.walk(tree) if isinstance(n, _Function) and n.lineno <= line <= (n.end_lineno or 0)]
    scope: ast.AST = min(functions, key=lambda n: (n.end_lineno or 0) - n.lineno) if functions else tree
    simple = [n for n in ast.walk(scope) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
    failing = [n for n in simple if n.lineno <= line <= (n.end_lineno or n.lineno)]
    heads = [n for n in ast.walk(scope) if isinstance(n, ast.For | ast.With | ast.While | ast.If) and n.lineno == line]
    wanted: set[str] = set()
    for own in failing:
        wanted |= _names(own)
    for head in heads:  # nothing raised in `with self.assertRaises(E): ...`: its body is what the line is about
        wanted |= _names(head if isinstance(head, ast.With) else _head(head))
    earlier: list[ast.AST] = [n for n in simple if n.lineno < line]
    earlier += [_head(n) for n in ast.walk(scope) if isinstance(n, ast.For | ast.With) and n.lineno <= line]
    variables = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    changed = True
    while changed:
        before = len(wanted)
        for statement in earlier:
            used = {n for n in ast.walk(statement) if isinstance(n, ast.Name)}
            # An assignment makes a value; a bare call may change one in place: `stack.push(1)`.
            made = {n.id for n in used if isinstance(statement, ast.Expr) or isinstance(n.ctx, ast.Store)}
            if made & wanted & variables:
                wanted |= _names(statement)
        changed = len(wanted) > before
    return wanted


def _head(statement: ast.AST) -> ast.AST:
    """A compound statement without its body, so that walking it sees only its first line's expressions."""
    if isinstance(statement, ast.With):
        return ast.With(items=statement.items, body=[])
    if isinstance(statement, ast.For):
        return ast.For(target=statement.target, iter=statement.iter, body=[], orelse=[])
    assert isinstance(statement, ast.While | ast.If)
    return ast.Expr(value=statement.test)
