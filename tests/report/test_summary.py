"""summary.json: every number against hand computation, and every gap named instead of scored as zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_runs import INFRA, A, F, R, T, demo_run, instance, row, write_jsonl, write_results
from rich.console import Console

from boostapr import report
from boostapr.errors import UserError
from boostapr.report.data import load_run
from boostapr.report.summary import summarize


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_run(tmp_path_factory.mktemp("runs") / "demo")


def numbers(path: Path) -> dict[str, Any]:
    """The summary without the pages."""
    return summarize(load_run(path))


def test_numbers_of_the_demo_run_by_hand(demo: Path) -> None:
    """8, 16, 18 and 24 of 40 solved; 4 more within four samples; the comparison counts follow from the fixture."""
    summary = report.build(demo)
    test = {name: found["test"] for name, found in summary["systems"].items()}
    assert [test[s]["pass@1"] for s in ("base", "sft", "rerank", "boostapr")] == [0.2, 0.4, 0.45, 0.6]
    assert [test[s]["pass@4"] for s in ("base", "sft", "rerank", "boostapr")] == [0.3, 0.5, 0.55, 0.7]
    assert all(entry["n"] == 40 and entry["missing"] == 0 for entry in test.values())
    assert test["boostapr"]["valid_diff_rate"] == pytest.approx(36 / 40)
    assert test["boostapr"]["statuses"] == {R: 24, T: 12, A: 3, F: 1}
    assert test["boostapr"]["formats"] == {"valid": 36, "malformed": 3, "not_a_diff": 1}
    versus = summary["comparisons"]["boostapr_vs_sft"]
    assert versus["difference"] == pytest.approx(0.2)
    assert versus["ci95"][0] > 0 and versus["ci95"] == versus["splits"]["test"]["ci95"]
    assert (versus["newly_resolved"], versus["degraded"], versus["unchanged"]) == (9, 1, 30)
    assert versus["mcnemar_p"] == pytest.approx(2 * (1 + 10) / 1024)  # P(at most 1 of 10 heads), both tails
    assert versus["splits"]["test_ood"]["difference"] == pytest.approx(0.075)
    assert summary["executed"]["candidates"] == {R: 10, T: 29, INFRA: 1}
    assert summary["executed"]["demonstrations"] == {R: 10, A: 10, T: 10}
    assert summary["stages"]["ppo"] == {"finished": True, "seconds": 611.0}
    assert summary["problems"] == []


def test_summary_json_is_what_build_returned(demo: Path) -> None:
    """The file that other tools read must hold the same numbers, as strict JSON (no NaN)."""
    summary = report.build(demo)
    assert json.loads((demo / "summary.json").read_text()) == summary


def test_the_same_results_give_the_same_summary(demo: Path) -> None:
    """The bootstrap is seeded: two reports of one run must not differ."""
    assert numbers(demo) == numbers(demo)


def test_a_missing_answer_is_named_and_never_a_zero(tmp_path: Path) -> None:
    """A half-evaluated system has no pass@1, its comparison has no difference, and both say how much is missing."""
    write_jsonl(tmp_path / "eval/instances/test.jsonl", [instance(i) for i in range(10)])
    write_results(tmp_path, "base", "test", [T] * 10)
    write_results(tmp_path, "sft", "test", [R] * 7)
    summary = numbers(tmp_path)
    sft = summary["systems"]["sft"]["test"]
    assert (sft["pass@1"], sft["valid_diff_rate"], sft["missing"], sft["answered"], sft["n"]) == (None, None, 3, 7, 10)
    versus = summary["comparisons"]["sft_vs_base"]
    assert (versus["difference"], versus["ci95"]) == (None, None)
    assert versus["reason"] == "sft lacks 3 of 10 answers"
    assert any("sft on test: 3 of 10 instances have no first answer" in p for p in summary["problems"])
    console = Console(width=120, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    console.print(report.table(summary))
    assert "partial (7/10)" in console.export_text()


def test_without_an_instance_list_the_other_systems_reveal_a_gap(tmp_path: Path) -> None:
    """No eval/instances: the denominator is every bug that any system of the run answered, not the own answers."""
    write_results(tmp_path, "base", "test", [T] * 10)
    write_results(tmp_path, "sft", "test", [R] * 7)
    entry = numbers(tmp_path)["systems"]["sft"]["test"]
    assert (entry["n"], entry["missing"], entry["pass@1"]) == (10, 3, None)


def test_infra_failures_stay_in_the_denominator_and_are_counted(tmp_path: Path) -> None:
    write_results(tmp_path, "sft", "test", [R, R, INFRA, T], [[R, INFRA, T, T]] * 4)
    summary = numbers(tmp_path)
    entry = summary["systems"]["sft"]["test"]
    assert (entry["pass@1"], entry["n"], entry["infra"]) == (0.5, 4, {"greedy": 1, "sampled": 4})
    assert any("1 of 4 answers could not be graded" in p for p in summary["problems"])


def test_too_few_samples_give_no_pass_at_4(tmp_path: Path) -> None:
    """Three samples of one bug must not be scored as four."""
    write_results(tmp_path, "sft", "test", [R, T], [[R, T, T, T], [T, T, R]])
    summary = numbers(tmp_path)
    assert summary["systems"]["sft"]["test"]["pass@4"] is None
    assert any("1 of 2 instances have fewer than 4 samples (first: bug-001)" in p for p in summary["problems"])


def test_more_samples_use_the_unbiased_estimator(tmp_path: Path) -> None:
    """One correct of eight: 1 - C(7,4)/C(8,4) = 1/2."""
    write_results(tmp_path, "sft", "test", [T, T], [[R] + [T] * 7, [T] * 8])
    assert numbers(tmp_path)["systems"]["sft"]["test"]["pass@4"] == pytest.approx(0.25)


def test_a_cut_last_line_is_left_out_and_named(tmp_path: Path) -> None:
    """The evaluate stage was killed while writing: the report still works and says so."""
    path = write_results(tmp_path, "sft", "test", [R, T])
    path.write_text(path.read_text() + '{"instance_id": "bug-0')
    summary = numbers(tmp_path)
    assert summary["systems"]["sft"]["test"]["n"] == 2
    assert any("the last line is cut" in p for p in summary["problems"])


def test_an_infra_result_graded_again_counts_once(tmp_path: Path) -> None:
    """A resumed stage appends a new verdict behind the infra row; the later one counts and is no anomaly."""
    path = tmp_path / "eval/sft/test/results.jsonl"
    write_jsonl(path, [row(0, INFRA), row(1, T), row(0, R)])
    summary = numbers(tmp_path)
    assert (summary["systems"]["sft"]["test"]["pass@1"], summary["problems"]) == (0.5, [])
    write_jsonl(path, [row(0, T), row(1, T), row(0, R)])
    assert any("written more than once" in p for p in numbers(tmp_path)["problems"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolved": "yes"}, "results.jsonl, line 2: field `resolved` must be bool, found str"),
        ({"outcome": None}, "results.jsonl, line 2: field `outcome` must be dict"),
        ({"instance_id": 3}, "results.jsonl, line 2: field `instance_id` must be str, found int"),
    ],
)
def test_a_broken_row_names_file_line_and_field(tmp_path: Path, change: dict, message: str) -> None:
    write_jsonl(tmp_path / "eval/sft/test/results.jsonl", [row(0, R), row(1, R) | change])
    with pytest.raises(UserError, match=message):
        numbers(tmp_path)


def test_a_run_without_results_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Run the evaluate stage first"):
        report.build(tmp_path)
    with pytest.raises(UserError, match="no such run folder"):
        report.build(tmp_path / "nowhere")


def test_whole_file_answers_have_no_rate_of_valid_diffs(tmp_path: Path) -> None:
    """Function-level benchmarks answer with code; 0% valid diffs would be a false statement."""
    write_jsonl(tmp_path / "eval/sft/test/results.jsonl", [row(i, R, format="code") for i in range(3)])
    entry = numbers(tmp_path)["systems"]["sft"]["test"]
    assert (entry["pass@1"], entry["valid_diff_rate"]) == (1.0, None)


def test_other_systems_are_compared_and_checks_are_not(tmp_path: Path) -> None:
    """A rival is set against SFT and BoostAPR; gold and noop are checks of the benchmark and compete with nobody."""
    for system in ("sft", "boostapr", "grpo", "gold", "ppo_r_seq"):
        write_results(tmp_path, system, "test", [R, T, R])
    found = set(numbers(tmp_path)["comparisons"])
    assert {"grpo_vs_sft", "boostapr_vs_grpo", "boostapr_vs_ppo_r_seq", "boostapr_vs_sft"} <= found
    assert not any("gold" in name for name in found)


def test_a_system_evaluated_on_one_split_only_is_named(tmp_path: Path) -> None:
    write_results(tmp_path, "base", "test", [T, R])
    write_results(tmp_path, "base", "test_ood", [T, R])
    write_results(tmp_path, "sft", "test", [R, R])
    summary = numbers(tmp_path)
    assert "test_ood" not in summary["systems"]["sft"]
    assert "sft: not evaluated on test_ood" in summary["problems"]


def test_training_answers_lost_to_our_own_errors_are_named(tmp_path: Path) -> None:
    write_results(tmp_path, "sft", "test", [R])
    rows = [{"step": s, "critic/score/mean": 0.0, "rollout/infra": 0.02 * s, "rollout/lost": 0.0} for s in (1, 2)]
    write_jsonl(tmp_path / "ppo" / "metrics.jsonl", rows)
    assert numbers(tmp_path)["problems"] == ["ppo: 3% of the training answers could not be graded (infra)"]
