"""Numbers that do not fit each other are refused before anything starts."""

import pytest
from helpers import ppo, verl
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mini_batch_size": 6}, "multiple of num_rollouts=4"),
        ({"mini_batch_size": 96}, "do not divide into mini-batches"),
        ({"micro_batch_size": 24}, "multiple of micro_batch_size=24"),
        ({"sampling": {"temperature": 0}}, "cannot be greedy"),
    ],
)
def test_batches_must_divide(changes: dict, message: str) -> None:
    """verl pads batches that do not divide with rows whose token streams have the wrong length."""
    with pytest.raises(ValidationError, match=message):
        ppo(**changes)


def test_a_misspelt_key_is_an_error() -> None:
    with pytest.raises(ValidationError, match="num_step\n"):
        ppo(num_step=3)


def test_shipped_files_are_valid() -> None:
    """conf/ppo and conf/verl hold every key that the models want, and no other."""
    assert ppo("paper").lora is not None
    assert ppo("demo").lora is None
    assert verl("gpu").device == "cuda"
    assert verl("cpu").ray.address == "local"
