"""BugInstance files: what is read, what is refused, and how clearly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.tasks import BugInstance, InstanceError, from_json, is_safe_path, load_instances, to_json

ROW = {
    "instance_id": "stats-1",
    "problem_statement": "mean is wrong",
    "FAIL_TO_PASS": ["test_stats.T::test_mean"],
    "PASS_TO_PASS": [],
    "files": {"stats.py": "def mean(xs):\n    return 0\n"},
    "test_files": {"test_stats.py": "import unittest\n"},
    "test_command": ["python", "-m", "unittest"],
    "difficulty": "easy",
}


def write(tmp_path, *rows):
    file = tmp_path / "bugs.jsonl"
    file.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return file


def test_unknown_fields_survive_a_round_trip(tmp_path):
    """A benchmark's own fields must not be lost when we write instances again."""
    (instance,) = load_instances(write(tmp_path, ROW))
    assert instance.extra == {"difficulty": "easy"}
    assert from_json(to_json(instance)) == instance
    assert to_json(instance)["difficulty"] == "easy"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"FAIL_TO_PASS": "x"}, "'FAIL_TO_PASS' must be a list of strings, is str"),
        ({"FAIL_TO_PASS": ["a", 1]}, "'FAIL_TO_PASS' must be a list of strings, an item is int"),
        ({"files": {"a.py": 1}}, "'files' must be an object {path: text}, the text of 'a.py' is int"),
        ({"files": {"../a.py": ""}}, "'files' the path '../a.py' leaves the tree"),
        ({"timeout_s": True}, "'timeout_s' must be a number"),
        ({"timeout_s": 0}, "'timeout_s' must be a number of seconds above 0, is 0"),
        ({"language": "cobol"}, "'language' must be one of python, java, is 'cobol'"),
        ({"output_mode": "code"}, "'target' must name the file"),
        ({"FAIL_TO_PASS": []}, "nothing could be graded"),
        ({"files": {}}, "where the tree comes from"),
    ],
)
def test_a_bad_field_is_named_with_file_and_line(tmp_path, change, words):
    """The reader must learn which line of which file to mend."""
    file = write(tmp_path, ROW, ROW | {"instance_id": "bad"} | change)
    with pytest.raises(InstanceError) as caught:
        load_instances(file)
    assert words in str(caught.value)
    assert f"{file}, line 2" in str(caught.value)


def test_missing_field_broken_json_and_repeated_id_are_errors(tmp_path):
    """Each of these would otherwise drop or merge instances in silence."""
    with pytest.raises(InstanceError, match=r"line 1: field 'test_command' is missing"):
        load_instances(write(tmp_path, {k: v for k, v in ROW.items() if k != "test_command"}))
    with pytest.raises(InstanceError, match=r"line 3: not JSON"):
        load_instances(write(tmp_path, ROW, "\n", '{"instance_id": \n'))
    with pytest.raises(InstanceError, match=r"line 2: field 'instance_id' repeats 'stats-1' of line 1"):
        load_instances(write(tmp_path, ROW, ROW))


def test_digest_depends_on_what_runs_and_on_nothing_else():
    """The digest keys the result cache: text edits must hit, changed tests must miss."""
    base = from_json(ROW)
    assert (
        from_json(ROW | {"problem_statement": "other", "difficulty": "hard", "instance_id": "x"}).digest == base.digest
    )
    assert from_json(ROW | {"test_files": {"test_stats.py": "import sys\n"}}).digest != base.digest
    assert from_json(ROW | {"timeout_s": 3}).digest != base.digest


@given(st.text())
def test_safe_paths_stay_inside_any_folder(text):
    """A path that passes the check never resolves outside the folder it is joined to."""
    if is_safe_path(text):
        from pathlib import Path

        assert Path("/box", text).is_relative_to("/box") and ".." not in Path("/box", text).parts


def test_instances_compare_by_value():
    """Splits are de-duplicated by equality."""
    assert from_json(ROW) == from_json(dict(ROW)) and isinstance(from_json(ROW), BugInstance)
