"""The vectorised path gives the numbers of the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shaping import GOOD, RESPONSES, cut, settings_for

from boostapr.credit import CREDIT, Granularity, Rollout, batch_token_rewards, units
from boostapr.patches import parse_patch

MARKER = b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n"


@st.composite
def rollouts(draw: st.DrawFn, granularity: Granularity) -> Rollout:
    response = draw(st.sampled_from([*RESPONSES, MARKER]))
    tokens = cut(response, draw(st.lists(st.integers(0, 9), max_size=30)))
    if draw(st.integers(0, 9)) == 0:
        tokens = [*tokens, b"not in the response"]
    mask = np.array(draw(st.lists(st.booleans() | st.just(True), min_size=len(tokens), max_size=len(tokens))))
    count = len(units(parse_patch(response), granularity))
    scores = draw(st.lists(st.floats(-1e4, 1e4), min_size=count, max_size=count))
    if draw(st.integers(0, 9)) == 0:
        scores = []  # R_line did not read it
    return Rollout(response, tokens, mask, None, draw(st.floats(-100, 100)), scores)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_batch_gives_what_the_credit_function_gives(data: st.DataObject) -> None:
    """Every granularity, mask, broken response and mismatch, in one batch."""
    granularity = data.draw(st.sampled_from(list(Granularity)))
    config = settings_for(granularity, data.draw(st.sampled_from([1e-3, 0.5, float("inf")])))
    batch = data.draw(st.lists(rollouts(granularity), max_size=6))
    for rollout, got in zip(batch, batch_token_rewards(batch, config), strict=True):
        assert got == pytest.approx(CREDIT["boostapr"](rollout, config).token_rewards, abs=1e-9)


def test_wrong_scores_are_errors_in_a_batch_too() -> None:
    """No silent truncation of scores."""
    rollout = Rollout(GOOD, [GOOD], np.ones(1, bool), None, 1.0, [1.0])
    with pytest.raises(ValueError, match="2 units"):
        batch_token_rewards([rollout], settings_for())
