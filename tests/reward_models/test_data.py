"""Reading candidates: what is wrong is named, what says nothing about a patch is dropped and counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from reward_models.data import Candidate, Example, distinct, load_candidates, split_instances, usable
from reward_models.training import SimilarLengths

ROW: dict[str, Any] = {
    "instance_id": "a",
    "k": 0,
    "response": "--- a/x.py\n",
    "num_tokens": 3,
    "outcome": Outcome(Status.APPLY_FAILED).to_dict(),
    "reward": {"r_env": 0.0, "r_diff": 0.0, "total": -0.002},
}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "candidates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_row_becomes_a_candidate(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 travel as surrogate escapes and must come back as they were."""
    response = b"+x = '\xff'\n"
    (candidate,) = load_candidates(write(tmp_path, ROW | {"response": response.decode("utf-8", "surrogateescape")}))
    assert candidate == Candidate("a", 0, response, -0.002, Outcome(Status.APPLY_FAILED))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"response": None}, "row 2: field `response` must be of type str"),
        ({"outcome": {"status": "fine"}}, "row 2: field `outcome`"),
        ({"reward": {"total": "1"}}, "row 2: field `reward.total` must be a number"),
        ({"reward": None}, "row 2: field `reward` must be of type dict"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_candidates(write(tmp_path, ROW, ROW | change))
    assert words in str(caught.value) and "candidates.jsonl" in str(caught.value)


def test_missing_and_empty_files_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="boostapr candidates"):
        load_candidates(tmp_path / "candidates.jsonl")
    with pytest.raises(UserError, match="boostapr candidates"):
        load_candidates(write(tmp_path))


def test_infra_and_overlong_candidates_are_dropped_and_counted(tmp_path: Path) -> None:
    """An infra outcome is no failure of the patch, and a truncated patch would be another patch."""
    infra = ROW | {"outcome": Outcome(Status.INFRA).to_dict(), "reward": {"total": None}}
    candidates = load_candidates(write(tmp_path, ROW, infra, ROW, infra))
    kept, dropped = usable(candidates, lengths=[10, 10, 11, 11], max_length=10)
    assert kept == [0]
    assert dropped == {"num_dropped_infra": 2, "num_dropped_too_long": 1}


@given(st.lists(st.text(max_size=3), min_size=2, unique=True), st.floats(0.01, 0.99), st.integers(0, 99))
def test_the_held_out_instances_are_disjoint_and_stable(ids: list[str], fraction: float, seed: int) -> None:
    """No instance on both sides, none lost, both sides filled, and the order of the rows is no matter."""
    train, held_out = split_instances(ids * 2, fraction, seed)
    assert train and held_out and not train & held_out and train | held_out == set(ids)
    assert split_instances(list(reversed(ids)), fraction, seed) == (train, held_out)


def test_one_instance_cannot_be_split() -> None:
    with pytest.raises(UserError, match="at least two"):
        split_instances(["a", "a"], 0.5, 0)


@given(st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=8))
def test_distinct_examples_rebuild_the_batch(sequences: list[list[int]]) -> None:
    """Equal candidates go through the model once; indexing the results must give every candidate its own back."""
    candidate = Candidate("a", 0, b"", 0.0, Outcome(Status.RESOLVED))
    examples = [Example(candidate, ids) for ids in sequences]
    rows, row = distinct(examples)
    assert [rows[i].ids for i in row] == sequences
    assert len({tuple(e.ids) for e in rows}) == len(rows)


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 7), st.integers(0, 3))
def test_the_sampler_visits_every_group_once_an_epoch(lengths: list[int], step_size: int, epoch: int) -> None:
    """Sorting by length must lose or repeat nothing, and the order must follow from seed and epoch alone (exact resume)."""
    sampler, again = (SimilarLengths(lengths, step_size, seed=1) for _ in range(2))
    sampler.set_epoch(epoch)
    again.set_epoch(epoch)
    order = list(sampler)
    assert sorted(order) == list(range(len(lengths))) and list(again) == order


def test_a_step_holds_groups_of_similar_length() -> None:
    """What the sampler is for: less padding than random order."""
    lengths = [(n * 37) % 200 + 1 for n in range(160)]
    order = list(SimilarLengths(lengths, 8, seed=0))
    padded = sum(8 * max(lengths[i] for i in order[s : s + 8]) for s in range(0, 160, 8))
    assert padded < 1.2 * sum(lengths)
    assert order != list(SimilarLengths(lengths, 8, seed=1))
