"""Executed candidates as training data: reading candidates.jsonl, the held-out split, groups of one instance."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boostapr.errors import UserError
from boostapr.files import read_jsonl
from boostapr.outcomes import Outcome, Status


@dataclass(frozen=True)
class Candidate:
    """One executed response: `target` is r*(x, y) of Eq. 3."""

    instance_id: str
    k: int
    response: bytes
    target: float
    outcome: Outcome


@dataclass(frozen=True)
class Example:
    """A candidate as one reward model sees it. `labels` (R_line) has one entry per span, and `units` the span of each token
    (-1: none); both are empty for R_seq."""

    candidate: Candidate
    ids: list[int]
    units: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


# The examples of one instance: batches are made of whole groups, so that within-instance pairs exist.
Group = list[Example]


def load_candidates(path: Path) -> list[Candidate]:
    """Read candidates.jsonl.

    Raises:
        UserError: the file is missing or empty, or a row is no candidate; names file, row and field.
    """
    if not path.is_file():
        raise UserError(f"{path}: no candidates here. Run `boostapr candidates` first.")
    candidates = [_candidate(row, f"{path}, row {number}") for number, row in enumerate(read_jsonl(path), start=1)]
    if not candidates:
        raise UserError(f"{path}: no candidate in it. Run `boostapr candidates` again.")
    return candidates


def _candidate(row: Mapping[str, Any], where: str) -> Candidate:
    for field, kind in (("instance_id", str), ("k", int), ("response", str), ("reward", dict), ("outcome", dict)):
        if not isinstance(row.get(field), kind):
            raise UserError(
                f"{where}: field `{field}` must be of type {kind.__name__}, is {type(row.get(field)).__name__}."
            )
    try:
        outcome = Outcome.from_dict(row["outcome"])
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: field `outcome`: {error}.") from None
    # An infra outcome says nothing about the response and has no r*; such rows are dropped by `usable`.
    target = row["reward"].get("total") if outcome.status is not Status.INFRA else 0.0
    if not isinstance(target, int | float):
        raise UserError(f"{where}: field `reward.total` must be a number, is {target!r}.")
    response = row["response"].encode("utf-8", "surrogateescape")
    return Candidate(row["instance_id"], row["k"], response, float(target), outcome)


def usable(
    candidates: Sequence[Candidate], lengths: Sequence[int], max_length: int
) -> tuple[list[int], dict[str, int]]:
    """Indices of the candidates to train on, and how many were dropped for which reason.

    Dropped: outcomes that the machine is to blame for (they say nothing about the patch), and candidates longer than
    `max_length` tokens (section 3.1: dropped rather than truncated).
    """
    infra = {i for i, c in enumerate(candidates) if c.outcome.status is Status.INFRA}
    long = {i for i, length in enumerate(lengths) if length > max_length} - infra
    kept = [i for i in range(len(candidates)) if i not in infra and i not in long]
    return kept, {"num_dropped_infra": len(infra), "num_dropped_too_long": len(long)}


def split_instances(instance_ids: Sequence[str], validation_fraction: float, seed: int) -> tuple[set[str], set[str]]:
    """(training, held-out) instance ids: a seeded shuffle of the distinct ids, at least one on each side.

    Raises:
        UserError: there are fewer than two instances.
    """
    ids = sorted(set(instance_ids))
    if len(ids) < 2:
        raise UserError(f"{len(ids)} instance(s) with usable candidates: the reward models need at least two.")
    random.Random(seed).shuffle(ids)
    num_held_out = min(max(1, round(validation_fraction * len(ids))), len(ids) - 1)
    return set(ids[num_held_out:]), set(ids[:num_held_out])


def group_by_instance(examples: Sequence[Example]) -> list[Group]:
    """Examples of one instance together, in order of first appearance."""
    groups: dict[str, Group] = {}
    for example in examples:
        groups.setdefault(example.candidate.instance_id, []).append(example)
    return list(groups.values())


def flatten(groups: Sequence[Group]) -> list[Example]:
    """All examples of some groups, in order."""
    return [example for group in groups for example in group]


def distinct(examples: Sequence[Example]) -> tuple[list[Example], list[int]]:
    """(examples with different token ids, for each example its place among them).

    A sampled policy repeats itself: equal candidates of a batch go through the model once and count as often as they occur.
    """
    places: dict[tuple[int, ...], int] = {}
    of_example = [places.setdefault(tuple(e.ids), len(places)) for e in examples]
    first = {place: example for example, place in zip(reversed(examples), reversed(of_example), strict=True)}
    return [first[place] for place in range(len(places))], of_example


def group_numbers(examples: Sequence[Example]) -> list[int]:
    """A number per example, equal for examples of one instance."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(e.candidate.instance_id, len(numbers)) for e in examples]
