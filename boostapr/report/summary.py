"""From stored results to the numbers of summary.json: scores per system and split, and paired comparisons.

A score is a number only if every instance of the split has its answer; otherwise it is None with the reason beside it.
Infra failures and timeouts are answers: they stay in the denominator, unresolved, and are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boostapr import stats
from boostapr.report.data import INFRA, SPLIT_ORDER, RunData, SplitResults

PASS_K = 4
CODE = "code"  # the format of answers that are whole files: no diff, so no share of valid ones
# Checks of the benchmark, not competitors: in the table, but compared with nobody.
CHECKS = ("gold", "noop")
# (system, baseline) pairs that are compared whenever both were evaluated; any other system is compared with the SFT model.
COMPARISONS = (
    ("sft", "base"),
    ("rerank", "sft"),
    ("ppo_r_seq", "sft"),
    ("boostapr", "sft"),
    ("boostapr", "rerank"),
    ("boostapr", "ppo_r_seq"),
    ("boostapr", "base"),
)


def summarize(run: RunData, seed: int = 0) -> dict[str, Any]:
    """All numbers of one run: `systems`, `comparisons`, `executed`, `problems` (see docs of `boostapr.report.build`)."""
    problems = list(run.problems)
    systems = {
        system: {split: score(run, system, split, problems) for split in run.splits() if split in splits}
        for system, splits in run.systems.items()
    }
    for system, splits in run.systems.items():
        problems += [f"{system}: not evaluated on {split}" for split in run.splits() if split not in splits]
    return {
        "run": run.name,
        "systems": systems,
        "comparisons": _comparisons(run, seed, problems),
        "executed": {name: dict(counts) for name, counts in run.executed.items()},
        "stages": {s.name: {"finished": s.done is not None, "seconds": s.seconds} for s in run.stages},
        "problems": problems,
    }


def score(run: RunData, system: str, split: str, problems: list[str]) -> dict[str, Any]:
    """pass@1, pass@4, share of valid diffs (0 to 1, each with a 95% interval), n and the counts behind them."""
    results, ids = run.systems[system][split], run.ids(split)
    where = f"{system} on {split}"
    problems += _strangers(results, ids, where)
    n = len(ids)
    rows = [results.first[i] for i in ids if i in results.first]
    statuses = Counter(row.status for row in rows)
    entry: dict[str, Any] = {
        "n": n,
        "pass@1": None,
        f"pass@{PASS_K}": None,
        "valid_diff_rate": None,
        "answered": len(rows),
        "missing": n - len(rows),
        "resolved": sum(row.resolved for row in rows),
        "statuses": dict(statuses.most_common()),
        "formats": dict(Counter(row.format for row in rows).most_common()),
        "formats_sampled": dict(Counter(row.format for s in results.samples.values() for row in s).most_common()),
        "infra": {
            "greedy": statuses[INFRA],
            "sampled": sum(r.status == INFRA for s in results.samples.values() for r in s),
        },
    }
    if n and len(rows) == n:
        _put(entry, "pass@1", stats.proportion(entry["resolved"], n))
        if any(row.format != CODE for row in rows):
            _put(entry, "valid_diff_rate", stats.proportion(sum(row.format == "valid" for row in rows), n))
    else:
        problems.append(f"{where}: {n - len(rows)} of {n} instances have no first answer yet; pass@1 is not given")
    if results.samples:
        values, reason = pass_at_k(results, ids, PASS_K)
        if reason:
            problems.append(f"{where}: pass@{PASS_K} is not given: {reason}")
        else:
            binary = bool(np.isin(values, (0.0, 1.0)).all())
            _put(
                entry,
                f"pass@{PASS_K}",
                stats.proportion(int(values.sum()), n) if binary else stats.bootstrap_mean(values),
            )
    if statuses[INFRA]:
        problems.append(
            f"{where}: {statuses[INFRA]} of {n} answers could not be graded (infra); they count as unresolved"
        )
    return entry


def resolved_vector(results: SplitResults, ids: Sequence[str]) -> NDArray[np.float64] | None:
    """float[n] of 0 and 1 in the order of ids, or None if an instance has no first answer."""
    if not ids or any(i not in results.first for i in ids):
        return None
    return np.array([float(results.first[i].resolved) for i in ids])


def pass_at_k(results: SplitResults, ids: Sequence[str], k: int) -> tuple[NDArray[np.float64], str]:
    """Unbiased pass@k per instance, float[n], and "" or the reason why it cannot be had."""
    short = [i for i in ids if len(results.samples.get(i, [])) < k]
    if short or not ids:
        return np.zeros(
            0
        ), f"{len(short)} of {len(ids)} instances have fewer than {k} samples (first: {', '.join(short[:3])})"
    drawn = [results.samples[i] for i in ids]
    return np.array([stats.pass_at_k(len(rows), sum(r.resolved for r in rows), k) for rows in drawn]), ""


def compare(baseline: SplitResults, system: SplitResults, ids: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """pass@1 of `system` minus `baseline` on the same instances: paired bootstrap interval and exact McNemar test.

    `difference`, `ci95` and `mcnemar_p` are None, with a `reason`, if one side is incomplete.
    """
    first, second = resolved_vector(baseline, ids), resolved_vector(system, ids)
    if first is None or second is None:
        missing = {r.system: sum(i not in r.first for i in ids) for r in (baseline, system)}
        reason = ", ".join(f"{name} lacks {count} of {len(ids)} answers" for name, count in missing.items() if count)
        return {"n": len(ids), "difference": None, "ci95": None, "mcnemar_p": None, "reason": reason or "no instances"}
    interval, test = stats.paired_bootstrap(first, second, seed), stats.mcnemar(first, second)
    return {
        "n": len(ids),
        "difference": interval.estimate,
        "ci95": [interval.low, interval.high],
        "newly_resolved": test.newly_resolved,
        "degraded": test.degraded,
        "unchanged": test.unchanged,
        "mcnemar_p": test.p,
    }


def pairs(systems: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(system, baseline) pairs to compare among the systems that are there."""
    known = {name for pair in COMPARISONS for name in pair} | set(CHECKS)
    found = [(s, b) for s, b in COMPARISONS if s in systems and b in systems]
    root = next((name for name in ("sft", "base") if name in systems), None)
    for other in [name for name in systems if name not in known]:
        found += [(other, root)] if root else []
        found += [("boostapr", other)] if "boostapr" in systems else []
    return found


def _comparisons(run: RunData, seed: int, problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for system, baseline in pairs(run.systems):
        name = f"{system}_vs_{baseline}"
        shared = [s for s in run.splits() if s in run.systems[system] and s in run.systems[baseline]]
        splits = {s: compare(run.systems[baseline][s], run.systems[system][s], run.ids(s), seed) for s in shared}
        if not splits:
            problems.append(f"{name}: no split that both were evaluated on")
            continue
        problems += [f"{name} on {s}: not compared: {c['reason']}" for s, c in splits.items() if "reason" in c]
        main = SPLIT_ORDER[0] if SPLIT_ORDER[0] in splits else next(iter(splits))
        # The main split's numbers lie at fixed keys (`difference`, `ci95`); every split's lie under `splits`.
        found[name] = {
            "system": system,
            "baseline": baseline,
            "metric": "pass@1",
            "split": main,
            **splits[main],
            "splits": splits,
        }
    return found


def _strangers(results: SplitResults, ids: Sequence[str], where: str) -> list[str]:
    extra = sorted({*results.first, *results.samples} - set(ids))
    if not extra:
        return []
    return [
        f"{where}: {len(extra)} answers are to instances outside the split and are left out (first: {', '.join(extra[:3])})"
    ]


def _put(entry: dict[str, Any], name: str, interval: stats.Interval) -> None:
    entry[name] = interval.estimate
    entry[f"{name}_ci95"] = [interval.low, interval.high]
