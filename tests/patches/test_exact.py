"""parse_patch against git: what is valid, what git counts, what is repaired (issue 3, exactness)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from diff_strategies import changes, damaged, diff_options
from git_oracle import Scratch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boostapr.patches import Patch, PatchFormat, Repair, parse_patch

git_settings = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def scratch() -> Iterator[Scratch]:
    made = Scratch()
    yield made
    made.close()


def check_spans(response: bytes, patch: Patch) -> None:
    """Spans are in order, disjoint, inside the response, whole lines, and hold nothing but `+`/`-` lines."""
    last = 0
    for index, span in enumerate(patch.spans):
        assert last <= span.start < span.end <= len(response)
        last = span.end
        assert span.start == 0 or response[span.start - 1 : span.start] == b"\n"
        ranges = patch.ranges(index)
        assert ranges[0][0] == span.start and ranges[-1][1] == span.end
        lines = [line for start, end in ranges for line in response[start:end].removesuffix(b"\n").split(b"\n")]
        assert [line[:1] for line in lines if line[:1] not in (b"+", b"-")] == []
        assert sum(line.startswith(b"+") for line in lines) == span.added == span.new_count
        assert sum(line.startswith(b"-") for line in lines) == span.removed == span.old_count


def check_valid(response: bytes, patch: Patch, scratch: Scratch) -> None:
    """git parses it, counts what we count in every file, and no edit line lies outside of what it counts."""
    ours = [(-1, -1, f.path) if f.is_binary else (f.added, f.removed, f.path) for f in patch.files]
    rows = scratch.numstat(response)
    assert rows is not None, f"git does not parse a valid patch: {response!r}"
    assert ours == [(added, removed, os.fsdecode(path)) for added, removed, path in rows]
    if not any(f.is_binary for f in patch.files):
        headers = sum(
            line.startswith((b"--- ", b"+++ ")) for f in patch.files for line in header_lines(response, patch, f.start)
        )
        signs = sum(line[:1] in (b"+", b"-") for line in response.split(b"\n"))
        assert signs - headers == sum(f.added + f.removed for f in patch.files)


def header_lines(response: bytes, patch: Patch, start: int) -> list[bytes]:
    """The lines of a file section before its first hunk."""
    ends = [h.start for h in patch.hunks if h.start > start] + [f.start for f in patch.files if f.start > start]
    return response[start : min(ends, default=len(response))].split(b"\n")


def check_recoverable(response: bytes, patch: Patch) -> None:
    """The repaired diff is valid, and its spans are the same lines as those found in the response."""
    again = parse_patch(patch.diff)
    assert again.format is PatchFormat.VALID and patch.repairs and patch.problem and patch.problem_line >= 1
    assert len(again.spans) == len(patch.spans)
    for ours, theirs in zip(patch.spans, again.spans, strict=True):
        assert ours._replace(start=0, end=0) == theirs._replace(start=0, end=0)
        lines, fixed = response[ours.start : ours.end], patch.diff[theirs.start : theirs.end]
        if Repair.CRLF in patch.repairs:
            lines = lines.replace(b"\r\n", b"\n")
        assert lines == fixed or lines + b"\n" == fixed


def check(response: bytes, scratch: Scratch) -> Patch:
    patch = parse_patch(response)
    check_spans(response, patch)
    if patch.format is PatchFormat.VALID:
        assert patch.diff == response and not patch.repairs and not patch.problem
        check_valid(response, patch, scratch)
    elif patch.format is PatchFormat.RECOVERABLE:
        check_recoverable(response, patch)
    else:
        assert not patch.spans and not patch.files and not patch.hunks and patch.problem
    return patch


@git_settings
@given(change=changes(), options=diff_options)
def test_every_diff_that_git_writes_is_valid_and_counted_as_git_counts(change, options, scratch: Scratch) -> None:
    """Real edits of nasty files (line ends, odd bytes and names, modes, renames, binaries, zero context)."""
    diff = scratch.diff(*change, *options)
    if diff:
        patch = check(diff, scratch)
        assert patch.format is PatchFormat.VALID, f"line {patch.problem_line}: {patch.problem}"


@git_settings
@given(change=changes(), options=diff_options, data=st.data())
def test_damaged_diffs_keep_their_promises(change, options, data: st.DataObject, scratch: Scratch) -> None:
    """Cut, doubled, wrapped, recounted: valid means that git agrees, recoverable that the repaired diff is valid."""
    diff = scratch.diff(*change, *options)
    for _ in range(4):
        check(data.draw(damaged(diff)), scratch)


@given(st.binary(max_size=200) | st.text(max_size=100))
def test_it_never_raises(response: bytes | str) -> None:
    """Any bytes, any text with lone surrogates: a Patch comes back."""
    assert parse_patch(response).format in PatchFormat


TOKENS = st.sampled_from(
    [b"--- ", b"+++ ", b"a/x", b"b/x", b"/dev/null", b"\n", b"@@ -1 +1 @@", b"@@ -0,0 +1,2 @@\n", b"@@ -1,2 +1 @@\n", b"+", b"-", b" ",
     b"diff --git a/x b/x\n", b"new file mode 100644\n", b"deleted file mode 100644\n", b"rename from x\n", b"rename to y\n",
     b"\\ No newline at end of file\n", b"x\n", b"\r\n", b"```\n", b"index 1..2 100644\n", b'"', b"\t", b"--- a/x\n+++ b/x\n", b"old mode 100644\n"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(response=st.lists(TOKENS, max_size=14).map(b"".join))
def test_pieces_of_diffs_in_any_order(response: bytes, scratch: Scratch) -> None:
    """Small strings of diff syntax, where git is the judge of what parses."""
    check(response, scratch)


def fitting_tree(patch: Patch) -> dict[bytes, tuple[bool, bytes]] | None:
    """A tree that the patch fits, made from its hunks; None where no single one can be made this simply."""
    tree: dict[bytes, tuple[bool, bytes]] = {}
    seen: set[str] = set()
    for change in patch.files:
        names = {change.old_path, change.new_path} - {None}
        if change.is_binary or names & seen or change.is_copy:
            return None
        seen |= {str(name) for name in names}
        lines: list[bytes] = []
        closed = False
        for number, hunk in enumerate(patch.hunks[i] for i in change.hunks):
            body = patch.diff[hunk.body : hunk.end].removesuffix(b"\n").split(b"\n")
            if closed or (number and hunk.old_start <= 1):
                return None
            if not number and hunk.old_start > 1:
                lines += [b"filler %d\n" % i for i in range(hunk.old_start - 1)]
            elif number:
                lines.append(b"between\n")
            for i, line in enumerate(body):
                ends = i + 1 < len(body) and body[i + 1].startswith(b"\\")
                if line[:1] in (b" ", b"-", b""):
                    lines.append(line[1:] + (b"" if ends else b"\n"))
                    closed |= ends
            signs = [line[:1] for line in body if not line.startswith(b"\\")]
            closed |= signs[-1] not in (b" ", b"")
            closed |= any(line.startswith(b"\\") for line in body)
        if not closed and lines:
            lines.append(b"the end\n")
        if change.old_path is not None and not (
            change.hunks and change.old_mode == 0 and patch.hunks[change.hunks[0]].old_start == 0
        ):
            tree[os.fsencode(change.old_path)] = (change.old_mode == 0o100755, b"".join(lines))
    return tree


@git_settings
@given(change=changes(), options=diff_options, data=st.data())
def test_plain_git_apply_accepts_a_valid_patch_on_a_fitting_tree(change, options, data, scratch: Scratch) -> None:
    """Valid is not only parsed: there is a tree on which plain `git apply` takes it, and our apply makes the same bytes."""
    diff = scratch.diff(*change, *options)
    for response in (diff, data.draw(damaged(diff))):
        patch = parse_patch(response)
        if patch.format is not PatchFormat.VALID or (tree := fitting_tree(patch)) is None:
            continue
        result = scratch.apply(tree, response)
        assert not isinstance(result, str), (result, response, tree)
