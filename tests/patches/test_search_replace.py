"""SEARCH/REPLACE blocks: what models damage, where a text is found, and the diff that comes of it (issue 3, point 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from diff_strategies import edits, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boostapr.patches import (
    AmbiguousMatch,
    BlockSyntaxError,
    NoMatch,
    PatchFormat,
    SearchReplaceError,
    Tolerance,
    apply_blocks,
    apply_patch,
    file_diff,
    parse_blocks,
    parse_patch,
    to_diff,
)

CODE = b"def f(x):\n    if x:\n        return 1\n    return 2\n\n\ndef g(x):\n    return f(x)\n"
FILES = {"src/f.py": CODE}


def block(search: str, replace: str, path: str = "src/f.py", fence: str = "```python") -> str:
    return f"{path}\n{fence}\n<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n```\n"


GOOD = block("        return 1\n", "        return 3\n")
DAMAGED = {
    "no fence": "src/f.py\n<<<<<<< SEARCH\n        return 1\n=======\n        return 3\n>>>>>>> REPLACE\n",
    "prose": "I found it.\n\n" + GOOD + "\nThat is all.\n",
    "path inside the fence": "```python\nsrc/f.py\n<<<<<<< SEARCH\n        return 1\n=======\n        return 3\n>>>>>>> REPLACE\n```",
    "path on the fence": "```python src/f.py\n<<<<<<< SEARCH\n        return 1\n=======\n        return 3\n>>>>>>> REPLACE\n```",
    "path behind the marker": "<<<<<<< SEARCH src/f.py\n        return 1\n=======\n        return 3\n>>>>>>> REPLACE\n",
    "path two lines up": "src/f.py\n\n" + GOOD.split("\n", 1)[1],
    "decorated path": GOOD.replace("src/f.py", "**File: `src/f.py`**:"),
    "dot slash": GOOD.replace("src/f.py", "./src/f.py"),
    "no path, one file": GOOD.split("\n", 1)[1],
    "crlf": GOOD.replace("\n", "\r\n"),
    "short markers": GOOD.replace("<<<<<<<", "<<<<<").replace("=======", "=====").replace(">>>>>>>", ">>>>>"),
    "no last newline": GOOD.rstrip("`\n"),
}


@pytest.mark.parametrize("response", DAMAGED.values(), ids=DAMAGED.keys())
def test_usual_damage_of_models_is_understood(response: str) -> None:
    """Fence, prose and path in all the wrong places still give the one edit that was meant."""
    assert apply_blocks(response, FILES).files == {"src/f.py": CODE.replace(b"return 1", b"return 3")}


TOLERATED = [
    (Tolerance.EXACT, "    return 2\n", "    return 4\n", CODE.replace(b"return 2", b"return 4")),
    (Tolerance.TRAILING_SPACE, "    return 2  \n", "    return 4\n", CODE.replace(b"return 2", b"return 4")),
    (Tolerance.BLANK_EDGES, "\n    return 2\n\n\n\n", "\n    return 4\n", CODE.replace(b"return 2", b"return 4")),
    (Tolerance.INDENTATION, "if x:\n    return 1\n", "if x > 0:\n    return 1\n", CODE.replace(b"if x", b"if x > 0")),
    (Tolerance.ELISION, "def f(x):\n...\n    return 2\n", "def h(x):\n...\n    return 4\n",
     CODE.replace(b"def f", b"def h").replace(b"return 2", b"return 4")),
]  # fmt: skip


@pytest.mark.parametrize(("how", "search", "replace", "expected"), TOLERATED, ids=[row[0].value for row in TOLERATED])
def test_each_tolerance_finds_what_the_step_before_does_not(how, search, replace, expected) -> None:
    """The steps are tried in order, and the answer says which one was needed."""
    edited = apply_blocks(block(search, replace), FILES)
    assert (edited.files["src/f.py"], edited.how) == (expected, (how,))


def test_line_ends_and_missing_last_newline_of_the_file_stay() -> None:
    """A CRLF file without a last newline keeps both through an edit of its last line."""
    edited = apply_blocks(block("b\n", "c\nd\n"), {"src/f.py": b"a\r\nb"})
    assert edited.files["src/f.py"] == b"a\r\nc\r\nd" and edited.how == (Tolerance.LINE_ENDS,)


def test_two_places_are_an_error_that_names_them() -> None:
    """Never the first of several."""
    with pytest.raises(AmbiguousMatch) as error:
        apply_blocks(block("    return 1\n", "x\n"), {"src/f.py": b"    return 1\n" * 2})
    assert error.value.places == (1, 2) and "lines 1, 2" in str(error.value)


def test_no_place_is_an_error_that_says_where_it_nearly_fits() -> None:
    """The reader learns the line and what stands there."""
    with pytest.raises(NoMatch) as error:
        apply_blocks(block("def g(x):\n    return f(x) + 1\n", "x\n"), FILES)
    assert error.value.near == 7 and "line 8 there is 'return f(x)'" in str(error.value)


@pytest.mark.parametrize(
    "response",
    [
        "src/f.py\n<<<<<<< SEARCH\na\n",
        "src/f.py\n<<<<<<< SEARCH\na\n=======\nb\n",
        "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n",
    ],
    ids=["no divider", "cut off", "no path"],
)
def test_broken_blocks_are_typed_errors_with_a_line(response: str) -> None:
    """A response that was cut, or names no file, is told apart from one that does not fit."""
    with pytest.raises(BlockSyntaxError, match=r"line \d of the response"):
        parse_blocks(response)


def test_blocks_of_several_files_and_a_new_one() -> None:
    """Later blocks see what earlier ones did; an empty search makes a file; the path carries over."""
    response = block("    return 2\n", "    return 5\n") + GOOD.split("\n", 1)[1] + block("", "new\n", "new.py")
    edited = apply_blocks(response, {**FILES, "other.py": b""})
    assert edited.files["src/f.py"] == CODE.replace(b"return 2", b"return 5").replace(b"return 1", b"return 3")
    assert edited.files["new.py"] == b"new\n"


def test_an_empty_search_for_a_file_with_lines_is_an_error() -> None:
    """Nothing is guessed about where the text should go."""
    with pytest.raises(SearchReplaceError, match="has lines"):
        apply_blocks(block("", "new\n"), FILES)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_diff_is_valid_and_says_the_same(data: st.DataObject) -> None:
    """file_diff of any two texts: parse_patch finds it valid, with the counts of the texts."""
    old = data.draw(texts())
    new = data.draw(edits(old))
    diff = file_diff("a dir/caf\u00e9.py", old, new)
    if old != new:
        patch = parse_patch(diff)
        assert patch.format is PatchFormat.VALID and [f.path for f in patch.files] == ["a dir/caf\u00e9.py"]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_conversion_applies_to_the_same_bytes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A unique passage of a nasty file is replaced: blocks, diff and git agree byte for byte."""
    before = data.draw(texts())
    old = before + b"\n" * (not before.endswith(b"\n")) + b"unique passage\n" + data.draw(texts())
    new = data.draw(texts().filter(lambda t: not any(m in t for m in (b"=====", b"<<<<<", b">>>>>"))))
    new = new if new.endswith(b"\n") or not new else new + b"\n"
    response = b"f.py\n<<<<<<< SEARCH\nunique passage\n=======\n" + new + b">>>>>>> REPLACE\n"
    expected = apply_blocks(response, {"f.py": old}).files["f.py"]
    root = tmp_path_factory.mktemp("tree")
    (root / "f.py").write_bytes(old)
    diff = to_diff(response, {"f.py": old})
    assert parse_patch(diff).format is PatchFormat.VALID
    result = apply_patch(root, diff)
    assert result.applied, result.error
    assert (root / "f.py").read_bytes() == expected and list(Path(root).iterdir()) == [root / "f.py"]
