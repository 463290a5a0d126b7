"""Sorting rows by length must not be seen from outside."""

from typing import Any

import torch
from tensordict import TensorDict
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from boostapr.verl_plugin.engines_cpu import SortedMicroBatches, restore_order


def _nested(*rows: list[int]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_rows_come_back_in_their_order(monkeypatch: Any) -> None:
    """The engine sees short rows first; log-probabilities and values return in the order of the batch."""
    seen: list[list[int]] = []

    def forward(self: Any, data: Any, loss_function: Any, forward_only: bool) -> dict[str, Any]:
        seen.extend(row.tolist() for row in data["input_ids"].unbind())
        return {"model_output": {"log_probs": data["input_ids"] * 10}, "loss": [], "metrics": {}}

    monkeypatch.setattr(FSDPEngine, "forward_backward_batch", forward)
    ids = _nested([1, 2, 3], [4], [5, 6, 7, 8], [9, 10])
    engine = object.__new__(SortedMicroBatches)
    output = engine.forward_backward_batch(TensorDict({"input_ids": ids}, batch_size=4), None, True)
    assert seen == [[4], [9, 10], [1, 2, 3], [5, 6, 7, 8]]
    rows = [row.tolist() for row in output["model_output"]["log_probs"].unbind()]
    assert rows == [[10, 20, 30], [40], [50, 60, 70, 80], [90, 100]]


def test_restore_is_the_inverse_of_a_selection() -> None:
    rows = _nested([0], [1, 1], [2, 2, 2], [3])
    order = torch.tensor([2, 0, 3, 1])
    picked = torch.nested.as_nested_tensor([rows.unbind()[i] for i in order], layout=torch.jagged)
    assert [row.tolist() for row in restore_order(picked, order).unbind()] == [row.tolist() for row in rows.unbind()]
