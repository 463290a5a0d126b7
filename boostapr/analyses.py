"""The paper's analyses of stored results: overlap with the reference, per-project counts, supervision quality.

All take what a run folder holds (`boostapr.report.data`) and need no model and no sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from boostapr import stats
from boostapr.patches import parse_patch

# A word or number, or one other visible character: the same for every language, and for text that does not parse.
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Graded(Protocol):
    """What is needed of a graded answer."""

    @property
    def response(self) -> bytes: ...
    @property
    def resolved(self) -> bool: ...


@dataclass(frozen=True)
class Group:
    """Counts of solved bugs in one group (a project, a kind of bug ...) for every system."""

    name: str
    n: int
    resolved: Mapping[str, int]


@dataclass(frozen=True)
class Overlap:
    """Token overlap of solved bugs' patches with the reference. `below_half`: share under 50% (the paper: 41%)."""

    n: int
    median: float
    below_half: float
    by_instance: Mapping[str, float]


@dataclass(frozen=True)
class Partition:
    """One row of Table 10: solve rates of both systems on the bugs of one supervision quality, and the paired difference."""

    name: str
    n: int
    baseline: float
    system: float
    difference: stats.Interval


def changed_tokens(patch: bytes) -> set[str]:
    """Distinct tokens of the added and removed lines of a diff, each with the sign of its line (no headers, no context)."""
    tokens = set()
    for span in parse_patch(patch).spans:
        for line in patch[span.start : span.end].split(b"\n"):
            sign = line[:1].decode("latin-1")
            if sign in ("+", "-"):
                tokens |= {sign + token for token in _TOKEN.findall(line[1:].decode("utf-8", "replace"))}
    return tokens


def jaccard(patch: bytes, reference: bytes) -> float:
    """Token-level Jaccard overlap of two diffs: |A and B| / |A or B| of their `changed_tokens`; 1.0 if neither changes a line.

    The paper (section C.4) does not say what a token is; this is our reading.
    """
    first, second = changed_tokens(patch), changed_tokens(reference)
    union = first | second
    return len(first & second) / len(union) if union else 1.0


def reference_overlap(answers: Mapping[str, Graded], references: Mapping[str, str]) -> Overlap | None:
    """Overlap with the reference patch among the solved bugs that have one; None if there is no such bug."""
    values = {
        instance_id: jaccard(answer.response, references[instance_id].encode())
        for instance_id, answer in sorted(answers.items())
        if answer.resolved and references.get(instance_id)
    }
    if not values:
        return None
    return Overlap(len(values), median(values.values()), sum(v < 0.5 for v in values.values()) / len(values), values)


def by_group(
    answers: Mapping[str, Mapping[str, Graded]],
    instances: Mapping[str, Mapping[str, Any]],
    key: Callable[[Mapping[str, Any]], Sequence[str]],
) -> list[Group]:
    """Solved bugs per group and system. `key` names the groups of an instance (several: it counts in each).

    The denominator of a group is its instances, whether answered or not.
    """
    members: dict[str, list[str]] = {}
    for instance_id, instance in instances.items():
        for name in key(instance):
            members.setdefault(name, []).append(instance_id)
    return [
        Group(name, len(ids), {s: sum(i in found and found[i].resolved for i in ids) for s, found in answers.items()})
        for name, ids in sorted(members.items())
    ]


def project(instance: Mapping[str, Any]) -> list[str]:
    """Table 7's key: the instance's `project`, else the last part of its repository's name."""
    name = instance.get("project") or str(instance.get("repo", "")).rstrip("/").rsplit("/", 1)[-1]
    return [str(name)] if name else []


def bug_kinds(instance: Mapping[str, Any]) -> list[str]:
    """Kinds of injected bugs (microbugs); a bug with several kinds counts in each."""
    return sorted({str(kind).replace("_", " ") for kind in instance.get("bug_kinds") or ()})


def num_bugs(instance: Mapping[str, Any]) -> list[str]:
    """How many places must change (microbugs)."""
    count = instance.get("num_bugs")
    return [] if count is None else [f"{count} bug{'s' if count != 1 else ''}"]


def solved_by_supervision(
    baseline: Mapping[str, Graded], system: Mapping[str, Graded], partition: Mapping[str, str], seed: int = 0
) -> list[Partition]:
    """Table 10: bugs split by how good the span labels of their analogues in training were.

    partition: instance id -> name of its part, such as "strong trace analogues" (see `supervision_partition`).
    Raises ValueError if a bug of the partition lacks an answer of either system: a part's denominator never shrinks.
    """
    lacking = sorted(i for i in partition if i not in baseline or i not in system)
    if lacking:
        raise ValueError(f"{len(lacking)} bugs of the partition lack an answer (first: {', '.join(lacking[:3])})")
    rows = []
    for name in sorted(set(partition.values())):
        ids = sorted(i for i, part in partition.items() if part == name)
        first, second = [float(baseline[i].resolved) for i in ids], [float(system[i].resolved) for i in ids]
        difference = stats.paired_bootstrap(first, second, seed)
        rows.append(Partition(name, len(ids), sum(first) / len(ids), sum(second) / len(ids), difference))
    return rows


def supervision_partition(
    instances: Mapping[str, Mapping[str, Any]],
    key: Callable[[Mapping[str, Any]], Sequence[str]],
    label_sources: Mapping[str, Mapping[str, int]],
    threshold: float,
) -> dict[str, str]:
    """Which test bugs have strong trace analogues in training.

    The paper does not define "analogue"; here: training bugs of the same group under `key` (project, kind of bug).
    label_sources: group -> label source -> number of failing spans in training (assertion_trace, function_level, uniform).
    A bug is strong if, over its groups, at least `threshold` of those spans were labelled from an assertion's trace.
    """
    parts = {}
    for instance_id, instance in instances.items():
        counts = [label_sources.get(name, {}) for name in key(instance)]
        total = sum(sum(c.get(s, 0) for s in ("assertion_trace", "function_level", "uniform")) for c in counts)
        strong = total > 0 and sum(c.get("assertion_trace", 0) for c in counts) >= threshold * total
        parts[instance_id] = "strong trace analogues" if strong else "heuristic-only analogues"
    return parts
