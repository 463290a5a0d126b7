"""boostapr.stats against hand computation, brute force and known answers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boostapr import stats


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_enumeration_of_all_subsets(case: tuple[int, int, int]) -> None:
    """The estimator is the exact share of k-subsets with a correct sample; a biased formula (1-(1-c/n)^k) fails here."""
    n, c, k = case
    samples = [i < c for i in range(n)]
    subsets = list(combinations(samples, k))
    assert stats.pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_k_with_n_equal_k_is_best_of_k() -> None:
    assert [stats.pass_at_k(4, c, 4) for c in range(5)] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_pass_at_k_refuses_too_few_samples() -> None:
    """Fewer samples than k must never be scored as if they were k."""
    with pytest.raises(ValueError, match=r"pass@4 needs at least 4 samples.*got 3"):
        stats.pass_at_k(3, 1, 4)
    with pytest.raises(ValueError, match="num_correct"):
        stats.pass_at_k(4, 5, 4)


def test_mcnemar_of_the_papers_counts_is_0_111() -> None:
    """Appendix C.5 gives 30 newly resolved, 18 degraded, 452 unchanged and p=0.049; the exact two-sided test says 0.111."""
    base = np.array([0] * 30 + [1] * 18 + [0] * 300 + [1] * 152)
    new = np.array([1] * 30 + [0] * 18 + [0] * 300 + [1] * 152)
    result = stats.mcnemar(base, new)
    assert (result.newly_resolved, result.degraded, result.unchanged) == (30, 18, 452)
    assert result.p == pytest.approx(0.1114, abs=5e-5)


@pytest.mark.parametrize(
    ("newly", "degraded", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (3, 3, 1.0), (9, 1, 22 / 1024)]
)
def test_mcnemar_small_counts_by_hand(newly: int, degraded: int, p: float) -> None:
    """2 * P(X >= max) under Binomial(newly + degraded, 1/2), capped at 1: small enough to do by hand."""
    assert stats.mcnemar_p(newly, degraded) == pytest.approx(p)


def test_mcnemar_refuses_averages_over_seeds() -> None:
    with pytest.raises(ValueError, match="not averages"):
        stats.mcnemar([0.5, 1.0], [1.0, 1.0])


def test_paired_bootstrap_agrees_with_theory_and_is_seeded() -> None:
    """On 400 paired results the percentile interval is close to the normal one, and the same seed gives the same ends."""
    rng = np.random.default_rng(7)
    base = rng.random(400) < 0.3
    new = base | (rng.random(400) < 0.15)
    result = stats.paired_bootstrap(base, new, seed=3)
    difference = new.astype(float) - base
    half = 1.96 * difference.std() / 20
    assert result.estimate == pytest.approx(difference.mean())
    assert result.low == pytest.approx(difference.mean() - half, abs=0.004)
    assert result.high == pytest.approx(difference.mean() + half, abs=0.004)
    assert result == stats.paired_bootstrap(base, new, seed=3)
    assert result.excludes_zero


def test_pairing_narrows_the_interval() -> None:
    """Two systems that differ on one instance in 100 have a narrow interval; resampling them apart would give +-13 points."""
    base = np.array([1] * 50 + [0] * 50)
    new = base.copy()
    new[99] = 1
    result = stats.paired_bootstrap(base, new)
    assert result.estimate == pytest.approx(0.01)
    assert (result.low, result.high) == (0.0, pytest.approx(0.03, abs=0.011))
    assert not result.excludes_zero


def test_identical_systems_have_an_interval_of_zero_width() -> None:
    assert stats.paired_bootstrap([1, 0, 1], [1, 0, 1]) == stats.Interval(0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_swapping_the_systems_mirrors_the_result(pairs: list[tuple[bool, bool]]) -> None:
    """difference(a, b) = -difference(b, a), and newly resolved and degraded change places."""
    a, b = np.array(pairs).T
    forward, backward = stats.paired_bootstrap(a, b, resamples=200), stats.paired_bootstrap(b, a, resamples=200)
    assert forward.estimate == pytest.approx(-backward.estimate)
    assert forward.low <= forward.estimate + 1e-12 and forward.high >= forward.estimate - 1e-12
    ab, ba = stats.mcnemar(a, b), stats.mcnemar(b, a)
    assert (ab.newly_resolved, ab.degraded, ab.p) == (ba.degraded, ba.newly_resolved, pytest.approx(ba.p))
    assert ab.newly_resolved + ab.degraded + ab.unchanged == len(pairs)


@pytest.mark.parametrize("bad", [[], [float("nan")], [[1, 0]]])
def test_unusable_values_are_refused(bad: list) -> None:
    with pytest.raises(ValueError):
        stats.bootstrap_mean(bad)


def test_a_paired_comparison_refuses_different_lengths() -> None:
    with pytest.raises(ValueError, match="same instances on both sides: 2 against 3"):
        stats.paired_bootstrap([1, 0], [1, 0, 1])


def test_wilson_interval_is_not_empty_at_the_ends() -> None:
    """0 of 40 and 40 of 40 must not claim certainty; 38 of 40 (QuixBugs) as computed by hand from Wilson's formula."""
    assert stats.proportion(0, 40).low == 0.0 and stats.proportion(0, 40).high == pytest.approx(0.0876, abs=1e-3)
    assert stats.proportion(40, 40).low == pytest.approx(0.9124, abs=1e-3)
    z, n, p = 1.959964, 40, 0.95
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    result = stats.proportion(38, 40)
    assert (result.low, result.high) == (pytest.approx(centre - half), pytest.approx(centre + half))


def test_mean_and_deviation_over_seeds() -> None:
    """Sample deviation (n - 1); one seed has none."""
    assert stats.mean_sd([0.40, 0.41, 0.42]) == (pytest.approx(0.41), pytest.approx(0.01))
    assert stats.mean_sd([0.4]) == (0.4, None)
