"""Reading a run folder: results per system and split, instances, training metrics, finished stages.

Nothing here imports a stage: the files are the interface. Whatever is missing, torn or inconsistent is put in words into
`RunData.problems`, and a result that is not complete stays incomplete; it never becomes a zero.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boostapr.errors import UserError
from boostapr.files import read_jsonl

RESULTS = "results.jsonl"
SAMPLED = "sampled"
INFRA = "infra"
# The order in which systems and splits are shown; others follow alphabetically.
SYSTEM_ORDER = ("base", "sft", "rerank", "ppo_r_seq", "boostapr")
SPLIT_ORDER = ("test", "test_ood")
STAGE_ORDER = ("demonstrations", "sft", "candidates", "reward", "ppo", "eval")


@dataclass(frozen=True)
class Row:
    """One graded response. `credit` is what R_seq and R_line said of it, if the evaluate stage stored that."""

    instance_id: str
    sample: int
    mode: str
    response: bytes
    format: str
    resolved: bool
    outcome: Mapping[str, Any]
    credit: Mapping[str, Any] | None = None

    @property
    def status(self) -> str:
        return str(self.outcome.get("status", "unknown"))


@dataclass(frozen=True)
class SplitResults:
    """All graded responses of one system on one split. `first` are the answers that pass@1 counts, by instance id."""

    system: str
    split: str
    path: Path
    first: dict[str, Row]
    samples: dict[str, list[Row]]

    def __iter__(self) -> Iterator[Row]:
        yield from self.first.values()
        for rows in self.samples.values():
            yield from rows


@dataclass(frozen=True)
class StageInfo:
    """A stage folder: what its done.json says (None: not finished) and its resolved configuration as text."""

    name: str
    done: Mapping[str, Any] | None
    config: str | None

    @property
    def seconds(self) -> float | None:
        return first_number(self.done or {}, ("wall_s",))


@dataclass
class RunData:
    """Everything the report knows about one run folder."""

    name: str
    path: Path
    systems: dict[str, dict[str, SplitResults]] = field(default_factory=dict)
    instances: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    stages: list[StageInfo] = field(default_factory=list)
    curves: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    executed: dict[str, Counter[str]] = field(default_factory=dict)
    reward_metrics: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def splits(self) -> list[str]:
        return ordered({split for splits in self.systems.values() for split in splits}, SPLIT_ORDER)

    def ids(self, split: str) -> list[str]:
        """The denominator of a split: its instances if they are known, else all that any system of the run answered."""
        known = self.instances.get(split)
        if known:
            return sorted(known)
        return sorted({i for s in self.systems.values() if split in s for i in (*s[split].first, *s[split].samples)})


def load_run(path: Path) -> RunData:
    """Read a run folder (layout: docs and conf/; eval/<system>/<split>/results.jsonl and one folder per stage).

    Raises UserError if the folder is not there, or (file, line, field) for a row that is not a result.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder. Give the folder that holds eval/, for example runs/demo")
    run = RunData(path.resolve().name, path)
    for folder in sorted(f for f in path.glob("eval/*/*") if f.is_dir()):
        if not (folder / RESULTS).is_file():
            run.problems.append(f"{_short(folder)}: no {RESULTS} yet")
            continue
        results = load_results(folder / RESULTS, run.problems)
        run.systems.setdefault(results.system, {})[results.split] = results
    run.systems = {name: run.systems[name] for name in ordered(run.systems, SYSTEM_ORDER)}
    for split in run.splits():
        run.instances[split] = _find_instances(path, split, run.problems)
    run.stages = _stages(path)
    for metrics in sorted(path.rglob("metrics.jsonl")):
        stage = metrics.parent.relative_to(path).as_posix()
        run.curves[stage] = load_metrics(metrics, run.problems)
        run.problems += _lost_rollouts(stage, run.curves[stage])
    quality = path / "reward" / "metrics.json"
    if quality.is_file():
        run.reward_metrics = json.loads(quality.read_text())
    _count_outcomes(path / "demonstrations" / "attempts.jsonl", "demonstrations", run)
    _count_outcomes(path / "candidates" / "candidates.jsonl", "candidates", run)
    for system, splits in run.systems.items():
        for split, results in splits.items():
            run.executed[f"eval {system} {split}"] = Counter(row.status for row in results)
    return run


def load_results(file: Path, problems: list[str]) -> SplitResults:
    """Read one results.jsonl. A result given twice counts once (the later one); a torn last line is reported and left out.

    Raises UserError with file, line and field if a row is not a result.
    """
    first: dict[str, Row] = {}
    samples: dict[str, dict[int, Row]] = {}
    repeated = 0
    for line, record in enumerate(read_rows(file, problems), start=1):
        row = _row(record, file, line)
        store: dict[Any, Row] = first
        key: Any = row.instance_id
        if row.mode == SAMPLED:
            store, key = samples.setdefault(row.instance_id, {}), row.sample
        # An infra failure that a resumed run graded again is the ordinary case; any other repetition is worth a word.
        repeated += key in store and store[key].status != INFRA
        store[key] = row
    if repeated:
        problems.append(f"{_short(file)}: {repeated} results were written more than once; the last of each counts")
    by_sample = {i: [rows[k] for k in sorted(rows)] for i, rows in samples.items()}
    return SplitResults(file.parent.parent.name, file.parent.name, file, first, by_sample)


def read_rows(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Rows of a JSONL file; a last line that a kill cut short is left out and named."""
    rows = read_jsonl(file)
    with file.open("rb") as raw:
        raw.seek(max(0, file.stat().st_size - 1))
        if raw.read() not in (b"", b"\n"):
            problems.append(f"{_short(file)}: the last line is cut (the writer was stopped); left out")
    return rows


def load_metrics(file: Path, problems: list[str]) -> list[tuple[int, dict[str, float]]]:
    """(step, numbers) per line of a metrics.jsonl, in the order of steps; both {"step", "data": {...}} (verl) and flat.

    A step logged more than once (resumed run, several lines a step) is merged, the later value counts.
    """
    merged: dict[int, dict[str, float]] = {}
    for line, record in enumerate(read_rows(file, problems), start=1):
        nested = record.get("data")
        data = nested if isinstance(nested, dict) else record
        step = first_number({**data, **record}, ("step", "training/global_step"))
        numbers = {str(k): v for k, v in ((k, _number(v)) for k, v in data.items()) if v is not None}
        numbers.pop("step", None)
        merged.setdefault(line if step is None else int(step), {}).update(numbers)
    return sorted(merged.items())


def ordered(names: set[str] | Mapping[str, Any], order: tuple[str, ...]) -> list[str]:
    """Known names in their order, then the others alphabetically."""
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


def first_number(record: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    """The first of `keys` that holds a number."""
    return next((v for v in (_number(record.get(k)) for k in keys) if v is not None), None)


def _row(record: Mapping[str, Any], file: Path, line: int) -> Row:
    for name, kind in (("instance_id", str), ("mode", str), ("response", str), ("outcome", dict), ("resolved", bool)):
        if not isinstance(record.get(name), kind):
            found = type(record.get(name)).__name__ if name in record else "nothing"
            raise UserError(f"{file}, line {line}: field `{name}` must be {kind.__name__}, found {found}")
    credit = record.get("credit")
    return Row(
        record["instance_id"], int(record.get("sample", 0)), record["mode"], _response(record),
        str(record.get("format", "unknown")), record["resolved"], record["outcome"],
        credit if isinstance(credit, dict) else None,
    )  # fmt: skip


def _response(record: Mapping[str, Any]) -> bytes:
    """The bytes of a response; `response_base64` is there if they are not UTF-8."""
    raw = record.get("response_base64")
    return base64.b64decode(raw) if isinstance(raw, str) else str(record["response"]).encode()


def _find_instances(path: Path, split: str, problems: list[str]) -> dict[str, Mapping[str, Any]]:
    """Instances (issue text, reference patch, required tests) as the evaluate stage left them beside the results."""
    places = [path / "eval" / "instances" / f"{split}.jsonl", *sorted(path.glob(f"eval/*/{split}/instances.jsonl"))]
    for file in places:
        if file.is_file():
            return {str(r["instance_id"]): r for r in read_rows(file, problems) if "instance_id" in r}
    return {}


def _stages(path: Path) -> list[StageInfo]:
    folders = {f.parent for name in ("done.json", "config.yaml") for f in path.glob(f"*/{name}")}
    stages = []
    for folder in folders:
        done, config = folder / "done.json", folder / "config.yaml"
        record = json.loads(done.read_text()) if done.is_file() else None
        stages.append(
            StageInfo(
                folder.relative_to(path).as_posix(),
                record if isinstance(record, dict) else None,
                config.read_text() if config.is_file() else None,
            )
        )
    order = ordered({s.name for s in stages}, STAGE_ORDER)
    return sorted(stages, key=lambda s: order.index(s.name))


def _count_outcomes(file: Path, stage: str, run: RunData) -> None:
    if not file.is_file():
        return
    latest: dict[tuple[Any, ...], str] = {}
    for number, record in enumerate(read_rows(file, run.problems)):
        if isinstance(record.get("outcome"), dict):
            attempt = record.get("k", record.get("attempt", number))
            latest[record.get("instance_id"), attempt] = str(record["outcome"].get("status", "unknown"))
    if latest:
        run.executed[stage] = Counter(latest.values())


def _lost_rollouts(stage: str, rows: list[tuple[int, dict[str, float]]]) -> list[str]:
    """Training answers that failures of our own machinery took away, in words."""
    found = []
    for key, words in (
        ("rollout/infra", "could not be graded (infra)"),
        ("rollout/lost", "were lost to errors of ours"),
    ):
        shares = [values[key] for _, values in rows if key in values]
        if sum(shares) > 0:
            found.append(f"{stage}: {100 * sum(shares) / len(shares):.2g}% of the training answers {words}")
    return found


def _number(value: object) -> float | None:
    """A finite number (also one that a logger wrote as text), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _short(file: Path) -> str:
    return "/".join(file.parts[-4:])
