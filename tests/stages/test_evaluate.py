"""Evaluation: strict grading of the raw answers, complete rows, reranking, credit, and resuming."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stage_tools import MemoryPolicy

from boostapr.config import compose, resolved
from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from boostapr.patches import parse_patch
from boostapr.report.data import load_run
from boostapr.report.summary import summarize
from envs.policies import Response
from envs.policies.fixed import predictions
from envs.policies.vllm_engine import VLLMSettings
from envs.sandboxes import SandboxSettings
from envs.tasks import BugInstance
from stages import evaluate
from stages.answers import Judge, rerank
from stages.settings import EvaluateSettings

VLLM = VLLMSettings.model_validate(resolved(compose(["experiment=demo"]))["vllm"])


@dataclass(frozen=True)
class Score:
    seq: float
    units: list[float]


class LengthScorer:
    """R_seq is the number of bytes, R_line the number of the span."""

    def score(self, responses: Sequence[bytes], granularity: str) -> list[Score]:
        return [Score(float(len(r)), [float(i) for i in range(parse_patch(r).num_spans)]) for r in responses]


def mixed(instance: BugInstance, k: int) -> Response:
    """The reference, the reference in a fence (recoverable, but grading is strict), and no diff."""
    patch = instance.patch
    return Response([patch, f"```\n{patch}```\n", "sorry"][k % 3].encode(), num_tokens=5)


def judge_of(settings: EvaluateSettings) -> Judge:
    return Judge(LengthScorer, settings.credit)


def contestant(settings: EvaluateSettings, name: str, policy: MemoryPolicy, source: str = "") -> evaluate.Contestant:
    return evaluate.Contestant(name, settings.systems[name], policy.open, source)


def nowhere(path: str) -> Path:
    raise AssertionError(f"no model was to be looked for, but {path} was")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_strict_grading_and_complete_rows(
    bugs: list[BugInstance], evaluate_settings: EvaluateSettings, sandbox: SandboxSettings, tmp_path: Path
) -> None:
    """In the real sandbox: a fenced patch fails although training could recover it; report.build reads what we write."""
    splits = {"test": bugs[:2], "test_ood": bugs[2:3]}
    policy = MemoryPolicy(mixed)
    folder = tmp_path / "eval"
    evaluate.run(
        evaluate_settings,
        [contestant(evaluate_settings, "boostapr", policy)],
        splits,
        judge_of(evaluate_settings),
        sandbox,
        {"seed": 0},
        folder,
    )
    rows = read(folder / "boostapr" / "test" / "results.jsonl")
    assert [(r["instance_id"], r["mode"], r["sample"]) for r in rows] == [
        (bug.instance_id, *key) for bug in bugs[:2] for key in [("greedy", 0), *(("sampled", k) for k in range(4))]
    ]
    assert [r["resolved"] for r in rows[:5]] == [True, True, False, False, True]
    assert [r["format"] for r in rows[:4]] == ["valid", "valid", "recoverable", "not_a_diff"]
    assert [r["outcome"]["status"] for r in rows[2:4]] == ["apply_failed", "format"] or not rows[2]["resolved"]
    assert rows[0]["response"] == bugs[0].patch and rows[0]["num_tokens"] == 5
    assert len(policy.seeds) == 1  # one engine for both splits
    summary = json.loads((folder / "boostapr" / "test" / "summary.json").read_text())
    assert summary["pass@1"] == 1.0 and summary["pass@4"] == 1.0 and summary["n"] == 2

    credit = rows[0]["credit"]
    assert "credit" not in rows[1]
    assert credit["seq"] == len(bugs[0].patch) and credit["format_penalty"] == 0.0
    assert sum(span["weight"] for span in credit["spans"]) == pytest.approx(1)
    patch = bugs[0].patch.encode()
    assert all(patch[s["start"] : s["end"]].startswith((b"-", b"+")) for s in credit["spans"])

    report = summarize(load_run(tmp_path))
    assert report["systems"]["boostapr"]["test"]["pass@1"] == 1.0
    assert report["systems"]["boostapr"]["test_ood"]["n"] == 1


def test_gold_resolves_everything_and_noop_nothing(
    bugs: list[BugInstance], evaluate_settings: EvaluateSettings, sandbox: SandboxSettings, tmp_path: Path
) -> None:
    """The two ends of the scale; a bug that noop resolves, or gold does not, is no bug."""
    contestants = [evaluate.contestant(name, evaluate_settings, VLLM, nowhere) for name in ("gold", "noop")]
    evaluate.run(
        evaluate_settings,
        contestants,
        {"dev": bugs},
        judge_of(evaluate_settings),
        sandbox,
        {"seed": 0},
        tmp_path,
    )
    results = {name: json.loads((tmp_path / name / "dev" / "summary.json").read_text()) for name in ("gold", "noop")}
    assert (results["gold"]["resolved"], results["noop"]["resolved"]) == (len(bugs), 0)
    assert results["noop"]["statuses"] == {"tests_failed": len(bugs)}


def fake_run_many(log: list[bytes], die_after: int | None = None) -> Callable[..., Any]:
    def run(
        settings: object, items: Sequence[tuple[BugInstance, bytes]], progress: str | None
    ) -> Iterator[tuple[int, Outcome]]:
        for index, (instance, response) in enumerate(items):
            if len(log) == die_after:
                raise KeyboardInterrupt
            log.append(response)
            yield index, Outcome(Status.RESOLVED if response == instance.patch.encode() else Status.APPLY_FAILED)

    return run


def test_resumes_after_a_kill(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No answer is asked for or executed twice, and the rows are those of a run without a kill."""

    def run(folder: Path, policy: MemoryPolicy) -> None:
        splits = {"test": bugs[:3], "test_ood": bugs[3:]}
        evaluate.run(
            evaluate_settings,
            [contestant(evaluate_settings, "boostapr", policy)],
            splits,
            judge_of(evaluate_settings),
            sandbox,
            {"seed": 0},
            folder,
        )

    log: list[bytes] = []
    monkeypatch.setattr(evaluate, "run_many", fake_run_many(log, die_after=7))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", MemoryPolicy(mixed))
    monkeypatch.setattr(evaluate, "run_many", fake_run_many(log))
    policy = MemoryPolicy(mixed)
    run(tmp_path / "killed", policy)
    assert policy.seeds == [] and len(log) == 5 * len(bugs)
    run(tmp_path / "whole", MemoryPolicy(mixed))
    for split in ("test", "test_ood"):
        rows = [read(tmp_path / name / "boostapr" / split / "results.jsonl") for name in ("killed", "whole")]
        assert rows[0] == rows[1]


def test_stops_grading_when_generating_fails(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Grading runs beside the next system's generation; an error or a signal there ends both at once, and what was graded
    stays."""
    log: list[bytes] = []

    def slow(*arguments: Any) -> Iterator[tuple[int, Outcome]]:
        for result in fake_run_many(log)(*arguments):
            time.sleep(0.05)
            yield result

    def run(second: MemoryPolicy) -> None:
        both = [
            contestant(evaluate_settings, "base", MemoryPolicy(mixed)),
            contestant(evaluate_settings, "sft", second),
        ]
        evaluate.run(
            evaluate_settings, both, {"test": bugs}, judge_of(evaluate_settings), sandbox, {"seed": 0}, tmp_path
        )

    def fail(instance: BugInstance, k: int) -> Response:
        while not log:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "run_many", slow)
    with pytest.raises(KeyboardInterrupt):
        run(MemoryPolicy(fail))
    begun = len(log)
    assert begun < 5 * len(bugs)
    monkeypatch.setattr(evaluate, "run_many", fake_run_many(log))
    run(MemoryPolicy(mixed))
    assert len(log) - begun in (
        10 * len(bugs) - begun,
        10 * len(bugs) - begun + 1,
    )  # the one under way may not be written
    assert len(read(tmp_path / "base" / "test" / "results.jsonl")) == 5 * len(bugs)


def test_changed_settings_are_refused(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers drawn in another way, or to other bugs, must not be passed off as those of the settings at hand."""
    monkeypatch.setattr(evaluate, "run_many", fake_run_many([]))

    def run(settings: EvaluateSettings, some: list[BugInstance], seed: int, source: str = "a") -> None:
        evaluate.run(
            settings,
            [contestant(settings, "sft", MemoryPolicy(mixed), source)],
            {"test": some},
            judge_of(settings),
            sandbox,
            {"seed": seed},
            tmp_path,
        )

    run(evaluate_settings, bugs, 0)
    run(evaluate_settings, bugs, 0)
    values = evaluate_settings.model_dump()
    values["sampled"]["temperature"] = 0.9
    with pytest.raises(UserError, match=r"sampled\.temperature"):
        run(EvaluateSettings.model_validate(values), bugs, 0)
    with pytest.raises(UserError, match="instances"):
        run(evaluate_settings, bugs[:2], 0)
    with pytest.raises(UserError, match="seed"):
        run(evaluate_settings, bugs, 1)
    with pytest.raises(UserError, match="source"):
        run(evaluate_settings, bugs, 0, source="another model at the same place")


def test_rerank_picks_by_r_seq(bugs: list[BugInstance], evaluate_settings: EvaluateSettings) -> None:
    """Its best is the first answer, the best four different ones the samples; with fewer, the best come again."""
    texts = [b"bb", b"a", b"dddd", b"dddd", b"ccc"]
    stored = {(bugs[0].instance_id, "sampled", k): Response(text) for k, text in enumerate(texts)}
    answers = rerank(stored, [bugs[0].instance_id], 4, judge_of(evaluate_settings))
    assert [(a.mode, a.sample, a.response.data) for a in answers] == [
        ("greedy", 0, b"dddd"), ("sampled", 0, b"dddd"), ("sampled", 1, b"ccc"), ("sampled", 2, b"bb"), ("sampled", 3, b"a")
    ]  # fmt: skip
    assert answers[0].extra == {"rank": 0, "score": 4.0, "pool_sample": 2}
    again = rerank({key: Response(b"x") for key in stored}, [bugs[0].instance_id], 4, judge_of(evaluate_settings))
    assert [a.response.data for a in again] == [b"x"] * 5


def test_rerank_draws_a_pool(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool is sampled with its own numbers and no greedy answer; only what R_seq picks is executed."""
    log: list[bytes] = []
    monkeypatch.setattr(evaluate, "run_many", fake_run_many(log))
    policy = MemoryPolicy(mixed)
    evaluate.run(
        evaluate_settings,
        [contestant(evaluate_settings, "rerank", policy)],
        {"test": bugs},
        judge_of(evaluate_settings),
        sandbox,
        {"seed": 0},
        tmp_path,
    )
    size = evaluate_settings.systems["rerank"].pool_size
    assert policy.asked == [(bug.instance_id, size) for bug in bugs]
    rows = read(tmp_path / "rerank" / "test" / "results.jsonl")
    assert len(rows) == len(log) == 5 * len(bugs)
    longest = [f"```\n{bug.patch}```\n" for bug in bugs]
    assert [row["response"] for row in rows if row["mode"] == "greedy"] == longest


def test_predictions_file(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SWE-bench's predictions are graded as they are; an instance without one stays in the denominator."""
    monkeypatch.setattr(evaluate, "run_many", fake_run_many([]))
    file = tmp_path / "predictions.jsonl"
    file.write_text(
        "".join(json.dumps({"instance_id": b.instance_id, "model_patch": b.patch}) + "\n" for b in bugs[:2])
    )
    values = evaluate_settings.model_dump()
    values["systems"]["predictions"]["path"] = file
    settings = EvaluateSettings.model_validate(values)
    entry = evaluate.contestant("predictions", settings, VLLM, nowhere)
    evaluate.run(settings, [entry], {"test": bugs}, judge_of(settings), sandbox, {"seed": 0}, tmp_path / "eval")
    summary = json.loads((tmp_path / "eval" / "predictions" / "test" / "summary.json").read_text())
    assert (summary["n"], summary["resolved"]) == (len(bugs), 2)
    with pytest.raises(UserError, match=r"no\.jsonl"):
        predictions(tmp_path / "no.jsonl")
    file.write_text('{"instance_id": "x"}\n')
    with pytest.raises(UserError, match=r"row 1.*model_patch"):
        predictions(file)


def test_systems_that_cannot_answer_are_named(evaluate_settings: EvaluateSettings) -> None:
    """`system=sftt` says what there is; `predictions` without a file says which key is missing."""
    with pytest.raises(UserError, match=r"no system `sftt`.*sft"):
        evaluate.contestant("sftt", evaluate_settings, VLLM, nowhere)
    with pytest.raises(UserError, match=r"evaluate\.systems\.predictions\.path"):
        evaluate.contestant("predictions", evaluate_settings, VLLM, nowhere)


def test_infra_is_graded_again(
    bugs: list[BugInstance],
    evaluate_settings: EvaluateSettings,
    sandbox: SandboxSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the machine failed to grade stays in the denominator, unresolved; the next start grades it and nothing else."""

    def run() -> dict[str, Any]:
        one = contestant(evaluate_settings, "sft", MemoryPolicy(mixed))
        evaluate.run(
            evaluate_settings, [one], {"test": bugs}, judge_of(evaluate_settings), sandbox, {"seed": 0}, tmp_path
        )
        return json.loads((tmp_path / "sft" / "test" / "summary.json").read_text())

    def broken(
        settings: object, items: Sequence[tuple[BugInstance, bytes]], progress: str | None
    ) -> Iterator[tuple[int, Outcome]]:
        for index, outcome in fake_run_many([])(settings, items, progress):
            yield index, Outcome(Status.INFRA) if items[index][0] is bugs[0] else outcome

    monkeypatch.setattr(evaluate, "run_many", broken)
    summary = run()
    assert (summary["n"], summary["resolved"], summary["statuses"]["infra"]) == (len(bugs), len(bugs) - 1, 1)
    log: list[bytes] = []
    monkeypatch.setattr(evaluate, "run_many", fake_run_many(log))
    assert run()["resolved"] == len(bugs) and len(log) == 5
    assert run()["resolved"] == len(bugs) and len(log) == 5
