"""Several runs of the same thing (seeds): mean and deviation over runs, differences with every bug averaged over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boostapr import stats
from boostapr.report.data import SPLIT_ORDER, RunData, ordered
from boostapr.report.summary import pairs, resolved_vector


@dataclass(frozen=True)
class SeedRow:
    """pass@1 of a system, or the difference of two, over runs. baseline: "" for a system. sd: None for a single run."""

    split: str
    system: str
    baseline: str
    per_run: tuple[float, ...]
    mean: float
    sd: float | None
    interval: stats.Interval | None


def over_runs(runs: Sequence[RunData], seed: int = 0) -> tuple[list[SeedRow], list[str]]:
    """Rows for every system that all runs answered in full on the same bugs, and a line for each that had to be left out."""
    rows: list[SeedRow] = []
    left_out: list[str] = []
    for split in ordered({split for run in runs for split in run.splits()}, SPLIT_ORDER):
        id_lists = [run.ids(split) for run in runs]
        if any(ids != id_lists[0] for ids in id_lists) or not id_lists[0]:
            left_out.append(f"{split}: the runs were not evaluated on the same bugs, so they are not averaged")
            continue
        vectors: dict[str, np.ndarray] = {}
        for system in dict.fromkeys(system for run in runs for system in run.systems):
            found = [
                resolved_vector(run.systems[system][split], id_lists[0])
                if split in run.systems.get(system, {})
                else None
                for run in runs
            ]
            complete = [v for v in found if v is not None]
            if len(complete) < len(runs):
                left_out.append(
                    f"{system} on {split}: complete in {len(complete)} of {len(runs)} runs, so it is not averaged"
                )
                continue
            vectors[system] = np.array(complete)
            rows.append(_row(split, system, "", vectors[system].mean(axis=1), None))
        for system, baseline in pairs(vectors):
            difference = vectors[system] - vectors[baseline]
            interval = stats.bootstrap_mean(difference.mean(axis=0), seed)
            rows.append(_row(split, system, baseline, difference.mean(axis=1), interval))
    return rows, left_out


def _row(split: str, system: str, baseline: str, values: np.ndarray, interval: stats.Interval | None) -> SeedRow:
    mean, sd = stats.mean_sd(values.tolist())
    return SeedRow(split, system, baseline, tuple(values.tolist()), mean, sd, interval)
