"""`boostapr compare`: the same bugs on both sides, or a clear refusal; the paper's counts; seeds averaged bug by bug."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import R, T, row, write_jsonl, write_results

from boostapr.compare import compare_runs, main
from boostapr.errors import UserError


def papers_run(path: Path) -> Path:
    """30 newly resolved, 18 degraded, 452 unchanged (appendix C.5): 165 + 18 and 165 + 30 of 500."""
    both = [R] * 165
    write_results(path, "ppo_r_seq", "test", [*([T] * 30), *([R] * 18), *both, *([T] * 287)])
    write_results(path, "boostapr", "test", [*([R] * 30), *([T] * 18), *both, *([T] * 287)])
    return path


def test_the_papers_counts_give_0_111(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper states p=0.049 for these counts; the exact two-sided test gives 0.111, and the interval includes zero."""
    run = papers_run(tmp_path / "run")
    assert main([f"{run}:ppo_r_seq", f"{run}:boostapr", "--json", str(tmp_path / "c.json")]) == 0
    printed = capsys.readouterr().out
    assert "30 newly resolved, 18 degraded, 452 unchanged; exact McNemar p = 0.111" in printed
    assert "includes zero: cannot be told apart" in printed
    (stored,) = json.loads((tmp_path / "c.json").read_text())
    assert stored["difference"] == pytest.approx(12 / 500)
    assert stored["ci95"][0] < 0 < stored["ci95"][1]
    assert stored["n"] == 500 and len(stored["newly_resolved"]) == 30


def test_sides_may_be_result_folders_files_or_systems(tmp_path: Path) -> None:
    run = papers_run(tmp_path / "run")
    ways = [
        (f"{run}:ppo_r_seq", f"{run}:boostapr"),
        (f"{run}/eval/ppo_r_seq/test", f"{run}/eval/boostapr/test"),
        (f"{run}/eval/ppo_r_seq/test/results.jsonl", f"{run}:boostapr"),
    ]
    assert len({compare_runs(a, b)[0].difference for a, b in ways}) == 1


def test_a_bare_results_folder_can_be_compared(tmp_path: Path) -> None:
    """Results that lie in no run folder (graded predictions of another system) have neither a system nor a split."""
    write_jsonl(tmp_path / "theirs" / "results.jsonl", [row(i, s) for i, s in enumerate([T, T, R])])
    write_results(tmp_path / "run", "sft", "test", [R, T, R])
    (found,) = compare_runs(str(tmp_path / "theirs"), f"{tmp_path / 'run'}:sft")
    assert (found.split, found.n, found.newly_resolved) == ("test", 3, ("bug-000",))


def test_two_runs_compare_every_system_that_both_have(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for system in ("base", "sft"):
            for split in ("test", "test_ood"):
                write_results(tmp_path / name, system, split, [R, T])
    write_results(tmp_path / "b", "boostapr", "test", [R, R])
    found = compare_runs(str(tmp_path / "a"), str(tmp_path / "b"))
    assert [(c.system_b, c.split) for c in found] == [(s, p) for s in ("base", "sft") for p in ("test", "test_ood")]
    assert found[0].label_a == f"Base of {tmp_path / 'a'}"
    assert len(compare_runs(str(tmp_path / "a"), str(tmp_path / "b"), split="test")) == 2


def test_seeds_are_averaged_bug_by_bug(tmp_path: Path) -> None:
    """A: 25% and 50%, B: 75% and 75%: difference 37.5 points; one McNemar test for each pair of seeds."""
    for name, a, b in (("one", [R, T, T, T], [R, R, R, T]), ("two", [R, R, T, T], [R, T, R, R])):
        write_results(tmp_path / name, "sft", "test", a)
        write_results(tmp_path / name, "boostapr", "test", b)
    sides = [",".join(f"{tmp_path / name}:{system}" for name in ("one", "two")) for system in ("sft", "boostapr")]
    (found,) = compare_runs(*sides)
    assert (found.scores_a, found.scores_b) == ((0.25, 0.5), (0.75, 0.75))
    assert found.difference.estimate == pytest.approx(0.375)
    assert [(t.newly_resolved, t.degraded) for t in found.tests] == [(2, 0), (2, 1)]
    assert found.to_dict()["a"]["sd"] == pytest.approx(0.25 / 2**0.5)


def test_different_bugs_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "a", "sft", "test", [R, T])
    write_results(tmp_path / "b", "sft", "test", [R, T, T])
    with pytest.raises(
        UserError, match=r"did not answer the same bugs: 0 only on one side \(none\), 1 only on the other \(bug-002\)"
    ):
        compare_runs(str(tmp_path / "a"), str(tmp_path / "b"))


def test_a_missing_answer_is_refused(tmp_path: Path) -> None:
    write_results(tmp_path, "base", "test", [R, T, T])
    write_results(tmp_path, "sft", "test", [R, T])
    with pytest.raises(UserError, match=r"sft on test: 1 of 3 bugs have no first answer \(first: bug-002\)"):
        compare_runs(f"{tmp_path}:base", f"{tmp_path}:sft")


def test_nothing_in_common_says_what_there_is(tmp_path: Path) -> None:
    for system in ("base", "sft"):
        write_results(tmp_path / "a", system, "test", [R, T])
    write_results(tmp_path / "b", "grpo", "test", [R, T])
    write_results(tmp_path / "b", "boostapr", "test", [R, T])
    with pytest.raises(UserError, match=r"has base on test, sft on test; .* has boostapr on test, grpo on test"):
        compare_runs(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(UserError, match="has no system `gpro`; it has: boostapr, grpo"):
        compare_runs(str(tmp_path / "a"), f"{tmp_path / 'b'}:gpro")
