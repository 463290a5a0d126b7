"""Allocation, penalty, token rewards and the credit functions (issue 3, point 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from boostapr.credit import CREDIT, CreditSettings, Granularity, Rollout, allocate, shape, units
from boostapr.outcomes import FailureCause, Outcome, Status
from boostapr.patches import PatchFormat, parse_patch

PENALTY = {"valid": 0.0, "recoverable": -0.4, "malformed": -1.0, "not_a_diff": -1.5}
GOOD = b"--- a/f.py\n+++ b/f.py\n@@ -1,5 +1,5 @@\n a\n-b = 1\n+b = 2\n c\n-d\n+e\n f\n"
RENAME = b"diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n"
RESPONSES = [
    GOOD,
    b"Sure:\n" + GOOD,
    GOOD[:-30],
    GOOD[:40],
    b"no patch",
    b"",
    RENAME,
    GOOD + b"@@ nonsense\n",
    GOOD.replace(b"\n", b"\r\n"),
]


def settings_for(granularity: str = "edit_line", tau: float = 0.5, **extra: Any) -> CreditSettings:
    return CreditSettings(
        **{"algorithm": "boostapr", "tau": tau, "granularity": granularity, "format_penalty": PENALTY} | extra
    )


def cut(response: bytes, sizes: list[int]) -> list[bytes]:
    """The response in tokens of the given sizes, the rest in one."""
    tokens, position = [], 0
    for size in sizes:
        tokens.append(response[position : position + size])
        position += size
    return [*tokens, response[position:]]


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20), st.floats(1e-3, 1e6))
def test_weights_are_a_distribution_in_the_order_of_the_scores(scores: list[float], tau: float) -> None:
    """Eq. 5 without overflow: finite, >= 0, sum 1, higher scores never get less."""
    weights = allocate(scores, tau)
    assert np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() == pytest.approx(1, abs=1e-12)
    order = np.argsort(scores, kind="stable")
    assert (np.diff(weights[order]) >= 0).all()


def test_weights_at_the_ends() -> None:
    """tau -> inf is uniform; one unit gets all; none gives none; Eq. 5 by hand in between."""
    assert allocate([1e4, -1e4, 0], float("inf")).tolist() == pytest.approx([1 / 3] * 3)
    assert allocate([1e4, 0], 1e-3).tolist() == [1.0, 0.0] and allocate([-7.0], 0.5).tolist() == [1.0]
    assert allocate([], 0.5).size == 0
    assert allocate([1.0, 0.0], 0.5)[0] == pytest.approx(np.e**2 / (np.e**2 + 1))


@pytest.mark.parametrize(
    ("scores", "tau"),
    [([1.0], 0.0), ([1.0], -1.0), ([float("nan")], 1.0), ([float("inf")], 1.0), ([1.0], float("nan"))],
)
def test_bad_numbers_are_errors(scores: list[float], tau: float) -> None:
    """A broken score must not become a silent reward."""
    with pytest.raises(ValueError, match=r"tau|finite"):
        allocate(scores, tau)


def test_equation_8_by_hand() -> None:
    """s * w / n on each token of a unit, the penalty on the last token, zero elsewhere."""
    rewards = shape(2.0, np.array([0.75, 0.25]), np.array([-1, 0, 0, -1, 1, -1]), np.ones(6, dtype=bool), -0.4)
    assert rewards.tolist() == pytest.approx([0, 0.75, 0.75, 0, 0.5, -0.4])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_return_is_conserved_and_only_own_tokens_are_paid(data: st.DataObject) -> None:
    """sum = s + r_fmt for every response, granularity, cutting into tokens and mask; nothing where the mask is False."""
    response = data.draw(st.sampled_from(RESPONSES))
    granularity = data.draw(st.sampled_from(list(Granularity)))
    tokens = cut(response, data.draw(st.lists(st.integers(0, 9), max_size=40)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens))))
    patch = parse_patch(response)
    score = data.draw(st.floats(-1e4, 1e4))
    scores = data.draw(st.lists(st.floats(-1e4, 1e4), min_size=100, max_size=100))[: len(units(patch, granularity))]
    tau = data.draw(st.sampled_from([1e-3, 0.5, 1e9, float("inf")]))
    streams = CREDIT["boostapr"](Rollout(response, tokens, mask, None, score, scores), settings_for(granularity, tau))
    expected = score + PENALTY[patch.format] if mask.any() else 0.0
    assert streams.token_rewards.sum() == pytest.approx(expected, abs=1e-5)
    assert not streams.token_rewards[~mask].any() and streams.group_reward == pytest.approx(expected, abs=1e-5)
    assert (streams.in_loss == mask).all() and (streams.loss_weights == 1).all()


def test_zero_spans_and_broken_diffs_fall_back_to_the_last_token_of_the_policy() -> None:
    """A pure rename, prose, a malformed diff: the whole score where the mask is last True, and it is counted."""
    for response in (RENAME, b"no patch", GOOD[:40]):
        tokens = [*cut(response, [3, 3]), b"tool output", b""]
        mask = np.array([True, True, True, False, True])
        rollout = Rollout(response + b"tool output", tokens, mask, None, 2.0, [])
        streams = CREDIT["boostapr"](rollout, settings_for())
        assert np.flatnonzero(streams.token_rewards).tolist() == [4] and streams.fallback


def test_token_uniform_pays_every_token_of_the_policy_alike() -> None:
    """The dilution that Table 4 measures: context and headers get as much as edits."""
    tokens = cut(GOOD, [5] * 15)
    streams = CREDIT["boostapr"](
        Rollout(GOOD, tokens, np.ones(len(tokens), bool), None, 3.0, [0.7]), settings_for("token_uniform")
    )
    paid = [bool(token) for token in tokens]
    assert streams.token_rewards[paid].tolist() == pytest.approx([3.0 / sum(paid)] * sum(paid))


def test_r_seq_puts_all_on_the_last_token() -> None:
    """The baseline without line credit needs no unit scores, and that is no fallback."""
    tokens = cut(GOOD, [10])
    streams = CREDIT["r_seq"](Rollout(GOOD, tokens, np.ones(2, bool), None, 1.5, None), settings_for(algorithm="r_seq"))
    assert streams.token_rewards.tolist() == [0.0, 1.5] and not streams.fallback


@pytest.mark.parametrize("scores", [None, [1.0], [1.0, 2.0, 3.0]])
def test_missing_or_wrong_unit_scores_are_an_error(scores: list[float] | None) -> None:
    """Scores of another granularity would pay the wrong lines."""
    with pytest.raises(ValueError, match="unit scores for a patch of 2 units"):
        CREDIT["boostapr"](Rollout(GOOD, [GOOD], np.ones(1, bool), None, 1.0, scores), settings_for())


def test_a_patch_that_r_line_did_not_read_is_paid_on_its_last_token() -> None:
    """A response over R_line's length limit has no unit scores; its score must not be lost for that."""
    tokens = cut(GOOD, [10, 20])
    streams = CREDIT["boostapr"](Rollout(GOOD, tokens, np.ones(3, bool), None, 1.5, []), settings_for())
    assert streams.token_rewards.tolist() == [0.0, 0.0, 1.5] and streams.fallback


def test_causes_and_infra_failures() -> None:
    """The outcome's cause is passed on; what the machine spoilt gives no reward and no gradient."""

    def streams(outcome: Outcome | None, response: bytes = GOOD):
        scores = [0.0] * len(parse_patch(response).spans)
        return CREDIT["boostapr"](Rollout(response, [response], np.ones(1, bool), outcome, 1.0, scores), settings_for())

    assert streams(None).cause is FailureCause.NONE and streams(None, b"prose").cause is FailureCause.FORMAT
    assert streams(Outcome(Status.TIMEOUT)).cause is FailureCause.TIMEOUT
    infra = streams(Outcome(Status.INFRA))
    assert not infra.token_rewards.any() and not infra.in_loss.any() and np.isnan(infra.group_reward)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tau": 0.0}, "tau"), ({"algorithm": "nonesuch"}, "boostapr, r_seq"), ({"granularity": "word"}, "edit_line"),
     ({"format_penalty": {"valid": 0.0}}, "recoverable, malformed, not_a_diff"), ({"surplus": 1}, "surplus")],
)  # fmt: skip
def test_settings_name_what_is_wrong(change: dict[str, Any], message: str) -> None:
    """A bad configuration fails before any work, with the key in the message."""
    values = {"algorithm": "boostapr", "tau": 0.5, "granularity": "edit_line", "format_penalty": PENALTY} | change
    with pytest.raises(ValidationError, match=message):
        CreditSettings(**values)


def test_every_format_class_has_its_penalty() -> None:
    """Eq. 7 through a whole rollout of each class."""
    for response in RESPONSES:
        fmt = parse_patch(response).format
        rollout = Rollout(
            response, [response], np.ones(1, bool), None, 0.0, [0.0] * len(units(parse_patch(response), "edit_line"))
        )
        assert CREDIT["boostapr"](rollout, settings_for()).token_rewards.sum() == pytest.approx(PENALTY[fmt])
    assert {parse_patch(r).format for r in RESPONSES} == set(PatchFormat)
