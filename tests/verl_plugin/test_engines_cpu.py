"""The quicker ways of the CPU engines must not be seen from outside."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

from boostapr.verl_plugin.engines_cpu import CPUEngineWithLMHead, SortedMicroBatches, restore_order


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


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_and_entropies_are_verls(temperature: float) -> None:
    """One pass over all tokens gives the numbers and the gradients of verl's own loop over tokens."""
    torch.manual_seed(0)
    ids, scores = _nested([1, 2, 3], [4], [0, 4, 2, 1, 3]), torch.randn(3, 5, 7)
    batch = TensorDict({"input_ids": ids}, batch_size=3)
    tu.assign_non_tensor(batch, use_remove_padding=False, calculate_entropy=True)
    args = {
        "temperature": torch.full((3,), temperature),
        "temperature_is_one": temperature == 1.0,
        "input_ids_rmpad_rolled": torch.roll(ids.values(), -1),
    }
    results = []
    for engine_class in (FSDPEngineWithLMHead, CPUEngineWithLMHead):
        engine = object.__new__(engine_class)
        engine.engine_config = SimpleNamespace(entropy_checkpointing=False)
        logits = scores.clone().requires_grad_()
        output = engine.prepare_model_outputs(SimpleNamespace(logits=logits), dict(args), batch, None)
        loss = output["log_probs"].values().square().sum() + output["entropy"].values().sum()
        loss.backward()
        results.append((output["log_probs"].values(), output["entropy"].values(), logits.grad))
    for verls, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, verls)
