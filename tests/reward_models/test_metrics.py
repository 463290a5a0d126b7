"""The metrics of Table 8 on orders small enough to count by hand."""

import pytest

from reward_models.metrics import pairwise_accuracy, roc_auc, sequence_metrics, span_metrics, spearman


def test_pairwise_accuracy_counts_pairs_of_one_instance_only() -> None:
    """Instance a: one pair right, one tie, one wrong (the two candidates with equal r* are no pair)."""
    scores = [0.9, 0.5, 0.9, 0.1]
    targets = [1.0, 0.2, 0.2, 0.7]
    # (0,1) right, (0,2) tie, (3,1) wrong, (3,2) wrong, (0,3) right
    assert pairwise_accuracy(scores, targets, ["a", "a", "a", "a"]) == (pytest.approx(2.5 / 5), 5)
    assert pairwise_accuracy(scores, targets, ["a", "b", "a", "b"]) == (pytest.approx(0.5 / 2), 2)
    assert pairwise_accuracy(scores, targets, ["a", "b", "c", "d"]) == (None, 0)


def test_roc_auc_counts_ties_half_and_is_undefined_with_one_class() -> None:
    assert roc_auc([0.9, 0.4, 0.4, 0.1], [True, True, False, False]) == pytest.approx(3.5 / 4)
    assert roc_auc([0.1, 0.9], [True, False]) == 0.0
    assert roc_auc([0.1, 0.9], [True, True]) is None


def test_roc_auc_among_applied_patches_is_not_flattered_by_those_that_do_not_apply() -> None:
    """A model that only sees whether a patch applies: 0.83 over all, chance among those that do."""
    resolved, applied = [True, False, False, False], [True, True, False, False]
    metrics = sequence_metrics([1.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0], resolved, applied, ["a", "b", "c", "d"])
    assert metrics["roc_auc"] == pytest.approx(2.5 / 3)
    assert metrics["roc_auc_applied"] == 0.5


def test_spearman_sees_order_not_distance() -> None:
    assert spearman([1.0, 2.0, 100.0], [0.1, 0.2, 0.3]) == pytest.approx(1.0)
    assert spearman([3.0, 2.0, 1.0], [0.1, 0.2, 0.3]) == pytest.approx(-1.0)
    assert spearman([1.0, 1.0], [0.1, 0.2]) is None


def test_sequence_metrics_reports_the_numbers_behind_them() -> None:
    resolved, applied = [True, False, False], [True, False, True]
    metrics = sequence_metrics([1.0, 0.0, 0.5], [1.0, 0.0, 0.5], resolved, applied, ["a", "a", "b"])
    assert metrics["pairwise_accuracy"] == metrics["roc_auc"] == 1.0
    assert metrics["mean_squared_error"] == 0.0
    assert (metrics["num_candidates"], metrics["num_pairs"], metrics["num_successes"]) == (3, 1, 1)


def test_span_metrics_by_hand() -> None:
    """Instance a ranks + - - -, instance b - + -, instance c has no passing span (its failing span meets every passing one)."""
    groups = ["a"] * 4 + ["b"] * 3 + ["c"]
    labels = [1, -1, -1, -1, -1, 1, -1, -1]
    scores = [4.0, 3.0, 2.0, 1.0, 3.0, 2.0, 1.0, 3.0]
    metrics = span_metrics(scores, labels, groups, patches=[0, 1, 1, 2, 3, 4, 5, 6])
    # a: 3 of 3; b: one of two; c's 3.0 against 4.0 and 2.0: half
    assert metrics["pairwise_accuracy"] == pytest.approx((3 + 1 + 0.5) / 6)
    assert metrics["top1_hit_rate"] == pytest.approx(0.5)
    assert metrics["top3_hit_rate"] == pytest.approx(1.0)
    assert metrics["top1_chance"] == pytest.approx((1 / 4 + 1 / 3) / 2)
    assert metrics["top3_chance"] == pytest.approx((3 / 4 + 1) / 2)
    assert metrics["num_ranked_instances"] == 2


def test_within_patch_accuracy_wants_failing_spans_below_neutral_ones() -> None:
    """It is what redistribution inside one patch lives on, and must not mix patches."""
    metrics = span_metrics([0.0, 1.0, 2.0, 1.0], [-1, 0, -1, 0], ["a"] * 4, patches=[0, 0, 1, 1])
    assert metrics["within_patch_accuracy"] == pytest.approx(0.5)
    assert metrics["num_within_patch_pairs"] == 2


def test_a_tie_never_counts_as_a_hit() -> None:
    """A model that scores everything alike must not look good."""
    metrics = span_metrics([1.0, 1.0], [1, -1], ["a", "a"], patches=[0, 1])
    assert metrics["top1_hit_rate"] == 0.0
    assert metrics["pairwise_accuracy"] == 0.5


def test_span_metrics_without_spans_are_undefined_not_wrong() -> None:
    metrics = span_metrics([], [], [], [])
    assert metrics["pairwise_accuracy"] is None
    assert metrics["num_spans"] == 0
