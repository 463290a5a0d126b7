"""Statistics for benchmark results: pass@k, intervals over instances, and paired tests.

Everything here is paired by instance where two systems are compared, because they answer the same bugs. The protocol is
fixed (10,000 resamples, 95%), so that two reports of the same results give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with the two ends of its 95% interval, all in the unit of the data."""

    estimate: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class McNemar:
    """What changed between a baseline and a system on the same instances, and the exact two-sided p-value."""

    newly_resolved: int
    degraded: int
    unchanged: int
    p: float


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is correct (Chen et al., 2021).

    With num_samples == k it is 1.0 if any sample is correct, else 0.0.

    Raises ValueError if there are fewer than k samples, or more correct ones than samples.
    """
    if k < 1 or num_samples < k:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples of an instance, got {num_samples}")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct must be between 0 and num_samples={num_samples}, got {num_correct}")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def proportion(resolved: int, total: int) -> Interval:
    """A share with its Wilson interval, which stays inside [0, 1] and is not empty at 0% and 100%.

    Raises ValueError if total is 0.
    """
    if total < 1:
        raise ValueError("a share of no instances is undefined")
    ends = stats.binomtest(resolved, total).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(resolved / total, float(ends.low), float(ends.high))


def bootstrap_mean(values: ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of one value per instance with its percentile bootstrap interval over instances.

    Raises ValueError if there are no values, or if one is not finite.
    """
    data = _vector("values", values)
    mean = float(data.mean())
    if np.all(data == data[0]):  # every resample has the same mean: scipy would warn and give the same
        return Interval(mean, mean, mean)
    result = stats.bootstrap(
        (data,), np.mean, n_resamples=resamples, confidence_level=CONFIDENCE, method="percentile",
        rng=np.random.default_rng(seed), batch=max(1, 4_000_000 // data.size),
    )  # fmt: skip
    ends = result.confidence_interval
    # Sums of fractions leave 1e-17 where there is an exact zero, and zero decides what may be claimed.
    return Interval(mean, round(float(ends.low), 12), round(float(ends.high), 12))


def paired_bootstrap(baseline: ArrayLike, system: ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """mean(system) - mean(baseline) with its interval, drawing instances (not single results) with replacement.

    Both are float[n], one value per instance in the same order; a value may be a mean over seeds. An instance keeps its
    two results together in every resample, which is the same as a bootstrap of the differences.

    Raises ValueError if the lengths differ, are 0, or a value is not finite.
    """
    first, second = _pair(baseline, system)
    return bootstrap_mean(second - first, seed, resamples)


def mcnemar(baseline: ArrayLike, system: ArrayLike) -> McNemar:
    """Exact two-sided McNemar test (a binomial test of the discordant pairs) on two bool[n] of resolved instances.

    Raises ValueError if the lengths differ, are 0, or a value is neither 0 nor 1.
    """
    first, second = _pair(baseline, system)
    if not np.isin(np.concatenate([first, second]), (0.0, 1.0)).all():
        raise ValueError("McNemar's test takes resolved / not resolved (1 or 0) per instance, not averages")
    newly, degraded = int(np.sum(second > first)), int(np.sum(second < first))
    return McNemar(newly, degraded, first.size - newly - degraded, mcnemar_p(newly, degraded))


def mcnemar_p(newly_resolved: int, degraded: int) -> float:
    """p-value of the exact two-sided McNemar test from the two discordant counts (1.0 if both are 0)."""
    if newly_resolved + degraded == 0:
        return 1.0
    return float(stats.binomtest(newly_resolved, newly_resolved + degraded, 0.5).pvalue)


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1) over seeds; the deviation of a single seed is None, not 0.

    Raises ValueError if there are no values.
    """
    data = _vector("values", values)
    return float(data.mean()), float(data.std(ddof=1)) if data.size > 1 else None


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers, got shape {data.shape}")
    if not np.isfinite(data).all():
        raise ValueError(f"{name} has {int(np.sum(~np.isfinite(data)))} values that are not finite")
    return data


def _pair(baseline: ArrayLike, system: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = _vector("baseline", baseline), _vector("system", system)
    if first.size != second.size:
        raise ValueError(
            f"a paired comparison needs the same instances on both sides: {first.size} against {second.size}"
        )
    return first, second
