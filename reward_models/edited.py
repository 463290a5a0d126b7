"""Where the spans of an applied patch lie in the patched files, and which of them a failure runs through."""

from collections.abc import Mapping, Sequence

from boostapr.outcomes import Failure, Frame
from boostapr.patches import Hunk, Patch
from reward_models.callpath import Node, SourceIndex, names_behind


class EditedTree:
    """The Python files that a patch changed, patched in memory (git applied it before, so this only has to agree)."""

    def __init__(self, patch: Patch, files: Mapping[str, str]) -> None:
        self._spans = tuple(patch.spans)
        before, after, shifts = _apply(patch, files)
        self._paths = set(after)
        self._old_lines = [
            range(s.old_start + d, s.old_start + d + s.removed) for s, d in zip(self._spans, shifts, strict=True)
        ]
        self._new_lines = [
            range(s.new_start + d, s.new_start + d + s.added) for s, d in zip(self._spans, shifts, strict=True)
        ]
        old, new = SourceIndex(before), SourceIndex(after)
        # What no longer parses is looked up as it was before the patch.
        self._index = SourceIndex(
            {path: text if new.parses(path) else before.get(path, "") for path, text in after.items()}
        )
        self._nodes = [self._touched(old, number) for number in range(len(self._spans))]

    def on_assertion_paths(self, failures: Sequence[Failure], test_files: Mapping[str, str]) -> set[int] | None:
        """Numbers of the spans on the call paths of failing assertions; None if no path leads into a changed file."""
        nodes: set[Node] = set()
        for failure in failures:
            inside = self._inside([failure])
            if inside:
                nodes |= {node for frame in inside for node in self._nodes_of(frame)}
            else:
                nodes |= self._index.reachable(names_behind(failure, test_files))
        return self._on(nodes) if nodes else None

    def in_tracebacks(self, failures: Sequence[Failure]) -> set[int] | None:
        """Numbers of the spans in functions that appear in a traceback; None if none reaches an edited function."""
        inside = self._inside(failures)
        found = self._on({node for frame in inside for node in self._nodes_of(frame)})
        # A file that does not parse has no functions, but a line: that of the error.
        found |= {
            n
            for frame in inside
            for n, s in enumerate(self._spans)
            if s.path == frame.path and frame.line in self._new_lines[n]
        }
        return found or None

    def _inside(self, failures: Sequence[Failure]) -> list[Frame]:
        return [frame for failure in failures for frame in failure.frames if frame.path in self._paths]

    def _on(self, nodes: set[Node]) -> set[int]:
        return {number for number, own in enumerate(self._nodes) if own & nodes}

    def _nodes_of(self, frame: Frame) -> set[Node]:
        """The definition that a frame is in: by its line, or by its name where the line is in another one."""
        node = self._index.enclosing(frame.path, frame.line)
        if (
            frame.function.startswith("<") or node[1].rsplit(".", 1)[-1] == frame.function
        ):  # <module>, <lambda>, <listcomp>
            return {node}
        return self._index.named(frame.path, frame.function) or {node}

    def _touched(self, old: SourceIndex, number: int) -> set[Node]:
        """The definitions that a span edits: those around its removed lines before, and around its added lines after."""
        path = self._spans[number].path
        return {old.enclosing(path, line) for line in self._old_lines[number]} | {
            self._index.enclosing(path, line) for line in self._new_lines[number]
        }


def _apply(patch: Patch, files: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], list[int]]:
    """({path: old text}, {path: new text}, shift of each span), for the Python files that the patch changes.

    The keys are the new paths. A shift is how many lines from the place that its header names git found a hunk.
    """
    before: dict[str, str] = {}
    images: dict[str, list[str]] = {}
    shift_of_hunk: list[int] = []
    for hunk in patch.hunks:
        change = patch.files[hunk.file]
        old = "" if change.old_path is None else files.get(change.old_path)
        if old is None or not hunk.path.endswith(".py"):
            shift_of_hunk.append(0)
            continue
        before.setdefault(hunk.path, old)
        image = images.setdefault(hunk.path, old.split("\n"))
        removed, added = _sides(patch.response, hunk)
        first = hunk.new_start if hunk.new_count else hunk.new_start + 1
        place = _nearest(image, removed, first - 1)
        image[place : place + len(removed)] = added
        shift_of_hunk.append(place + 1 - first)
    return (
        before,
        {path: "\n".join(image) for path, image in images.items()},
        [shift_of_hunk[s.hunk] for s in patch.spans],
    )


def _sides(response: bytes, hunk: Hunk) -> tuple[list[str], list[str]]:
    """The old and the new lines of a hunk, context included."""
    old, new = [], []
    for line in response[hunk.body : hunk.end].decode("utf-8", "replace").removesuffix("\n").split("\n"):
        sign, text = line[:1], line[1:]
        if sign in ("-", " ", ""):
            old.append(text)
        if sign in ("+", " ", ""):
            new.append(text)
    return old, new


def _nearest(image: Sequence[str], lines: Sequence[str], place: int) -> int:
    """The index nearest to `place` at which `lines` stand in `image`, as `git apply` looks for it; `place` if nowhere."""
    width = len(lines)
    fits = [i for i in range(len(image) - width + 1) if image[i : i + width] == list(lines)]
    return min(fits, key=lambda i: (abs(i - place), i), default=place)
