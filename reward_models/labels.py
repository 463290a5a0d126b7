"""Span labels from execution: the priority cascade of section 3.3.3 and appendix C.6.

    passing patch                        every span +1                                             passing
    failing, a failing assertion known   spans on its call path -1, the others 0                   assertion_trace
    failing, a traceback without one     spans in functions that appear in it -1, the others 0     function_level
    not applied, or nothing to go by     every span -1, all alike                                  uniform

The call path of a failing assertion: the frames of its traceback inside the changed files where there are any; and where
the traceback ends in the test, as every value mismatch does, the definitions that the assertion's statement runs through
(`reward_models.callpath`). A path that leads to no changed file says nothing, and the cascade goes on below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from boostapr.outcomes import Outcome, Status
from boostapr.patches import Patch
from reward_models.edited import EditedTree


class LabelSource(StrEnum):
    """How the labels of a patch were found."""

    PASSING = "passing"
    ASSERTION_TRACE = "assertion_trace"
    FUNCTION_LEVEL = "function_level"
    UNIFORM = "uniform"


@dataclass(frozen=True)
class SpanLabel:
    """+1 passing, -1 failing, 0 neutral."""

    value: int
    source: LabelSource


def label_spans(
    patch: Patch, outcome: Outcome, files: Mapping[str, str], test_files: Mapping[str, str]
) -> list[SpanLabel]:
    """One label per span of an executed patch.

    Args:
        patch, outcome: the candidate and what running it led to.
        files: {path: text} of the tree before the patch; only files that the patch touches are needed. Languages other than
            Python have no call path: their spans come out `uniform`.
        test_files: {path: text} of the tests, laid over the tree.

    Raises:
        ValueError: an infra outcome, which says nothing about the patch.
    """
    if outcome.status is Status.INFRA:
        raise ValueError(f"an infra outcome labels no span ({outcome.detail})")
    if outcome.resolved:
        return [SpanLabel(1, LabelSource.PASSING) for _ in patch.spans]
    if outcome.applied:
        edited = EditedTree(patch, files)
        asserted = [f for f in outcome.failures if any(frame.is_assertion for frame in f.frames)]
        for source, failing in (
            (LabelSource.ASSERTION_TRACE, edited.on_assertion_paths(asserted, test_files)),
            (LabelSource.FUNCTION_LEVEL, edited.in_tracebacks(outcome.failures)),
        ):
            if failing is not None:
                return [SpanLabel(-1 if i in failing else 0, source) for i in range(len(patch.spans))]
    return [SpanLabel(-1, LabelSource.UNIFORM) for _ in patch.spans]
