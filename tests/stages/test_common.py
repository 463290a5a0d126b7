"""Which bugs a stage sees."""

import pytest

from boostapr.config import SplitSettings
from boostapr.errors import UserError
from stages.common import load_split
from stages.settings import BenchmarkSettings

MICROBUGS = BenchmarkSettings(kind="microbugs", files={})


def _ids(skip: int, num_instances: int | None) -> list[str]:
    selected = SplitSettings(split="dev", skip=skip, num_instances=num_instances)
    return [instance.instance_id for instance in load_split(MICROBUGS, selected)]


def test_a_split_is_shared_out_without_overlap() -> None:
    """Stage I takes the first bugs of a split and later stages the others: together all, none twice."""
    everything = _ids(0, None)
    assert _ids(0, 70) + _ids(70, None) == everything
    assert _ids(3, 2) == everything[3:5]


def test_skipping_everything_is_an_error() -> None:
    with pytest.raises(UserError, match="skip=200 leaves none"):
        _ids(200, None)
