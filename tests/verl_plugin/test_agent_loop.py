"""An agent loop returns what the trainer needs, whatever goes wrong."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CREDIT
from omegaconf import OmegaConf
from tiny_model import conversation, make_policy
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from boostapr.credit import TokenStreams
from boostapr.outcomes import FailureCause
from boostapr.verl_plugin import agent_loop
from boostapr.verl_plugin.agent_loop import RolloutOutput, SingleTurnLoop, masked_streams

PATCH = b"--- a/f.py\n+++ b/f.py\n@@ -1,1 +1,1 @@\n-x = 1\n+x = 2\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("policy")
    make_policy(folder)
    return AutoTokenizer.from_pretrained(folder)


class _Remote:
    """A Ray actor's method, without Ray."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer

    async def remote(self, *args: Any) -> Any:
        return self.answer(*args)


def _score(responses: list[bytes]) -> list[Any]:
    return [SimpleNamespace(seq=0.5, units=[0.0]) for _ in responses]


def _resolve(instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
    return {"status": "resolved", "tests": {"t::a": "passed"}}, 1.0


def _run(
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: Any,
    response: bytes = PATCH,
    score: Callable[..., Any] = _score,
    execute: Callable[..., Any] | None = None,
    generate: Callable[..., Any] | None = None,
) -> RolloutOutput:
    ids = [*tokenizer.encode(response.decode()), tokenizer.eos_token_id]

    async def answer(**_: Any) -> Any:
        if generate:
            generate()
        steps = {"global_steps": 3, "min_global_steps": 3, "max_global_steps": 3}
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields=steps)

    actors = {
        agent_loop.SCORER: SimpleNamespace(score=_Remote(score)),
        agent_loop.EXECUTOR: SimpleNamespace(execute=_Remote(execute or _resolve)),
    }
    monkeypatch.setattr(agent_loop, "_actor", lambda name: actors[name])
    config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"response_length": 256}}, "boostapr": {"credit": CREDIT}, "data": {}}
    )

    async def go() -> RolloutOutput:
        loop = SingleTurnLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=SimpleNamespace(generate=answer),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen2",
        )
        return await loop.run(
            {"temperature": 1.0},
            raw_prompt=conversation(0),
            instance_id="i-1",
            execute=execute is not None,
            global_steps=4,
        )

    return asyncio.run(go())


def test_streams_reach_the_queue(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """One value per response token for each stream, one per row for the rest; the sum is s + r_fmt."""
    fields = _run(monkeypatch, tokenizer).as_dict()
    length = len(fields["responses"])
    for name in ("rm_scores", "loss_weights", "in_loss", "rollout_log_probs", "response_mask"):
        assert fields[name].shape == (length,), name
    assert fields["rm_scores"].sum().item() == pytest.approx(0.5, abs=1e-5)
    assert 1 < fields["rm_scores"].count_nonzero() < length, "the score lies on the edit lines, not on one token"
    assert fields["group_reward"].tolist() == [0.5]
    assert fields["cause"] == "none"
    assert fields["in_loss"].all()


def test_the_response_is_the_tokens_bytes(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """The scorer sees the response without the end token, byte for byte."""
    seen: list[bytes] = []

    def score(responses: list[bytes]) -> list[Any]:
        seen.extend(responses)
        return _score(responses)

    _run(monkeypatch, tokenizer, score=score)
    assert seen == [PATCH]


def test_validation_is_executed(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    info = _run(monkeypatch, tokenizer, execute=_resolve).extra_fields["reward_extra_info"]
    assert (info["executed"], info["resolved"], info["pass_rate"]) == (1.0, 1.0, 1.0)


def test_an_infra_outcome_is_no_failure_of_the_policy(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """It is masked and counted apart; its nan pass rate must not spoil the mean."""

    def broken(instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
        return {"status": "infra", "detail": "daemon gone"}, float("nan")

    output = _run(monkeypatch, tokenizer, execute=broken)
    info = output.extra_fields["reward_extra_info"]
    assert (info["infra"], info["executed"], info["pass_rate"], info["masked"]) == (1.0, 0.0, 0.0, 1.0)
    assert not output.as_dict()["in_loss"].any()


def test_a_dead_scorer_masks_the_rollout(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """Raising would fail the whole prompt group; a silent zero would teach that the patch was bad."""

    def dead(responses: list[bytes]) -> list[Any]:
        raise RuntimeError("the reward server is gone")

    output = _run(monkeypatch, tokenizer, score=dead)
    fields = output.as_dict()
    assert not fields["in_loss"].any()
    assert not fields["rm_scores"].any()
    assert np.isnan(fields["group_reward"].item())
    assert fields["cause"] == "infra"
    assert "the reward server is gone" in output.extra_fields["error"]


def test_a_failed_generation_leaves_one_masked_token(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """verl needs a row of length 1 with integer weight versions; response_mask 0 keeps it out of the KL."""

    def fail() -> None:
        raise RuntimeError("engine dead")

    output = _run(monkeypatch, tokenizer, generate=fail)
    fields = output.as_dict()
    assert fields["responses"].tolist() == [tokenizer.eos_token_id]
    assert fields["response_mask"].tolist() == [0]
    assert fields["extra_fields"]["min_global_steps"] == 3
    assert "engine dead" in output.extra_fields["error"]


def test_info_has_the_same_keys_always(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """verl takes the names from a batch's first row and cannot average lists."""

    def fail() -> None:
        raise RuntimeError

    outputs = [
        _run(monkeypatch, tokenizer),
        _run(monkeypatch, tokenizer, response=b"no patch at all"),
        _run(monkeypatch, tokenizer, execute=_resolve),
        _run(monkeypatch, tokenizer, generate=fail),
    ]
    infos = [output.extra_fields["reward_extra_info"] for output in outputs]
    assert len({tuple(info) for info in infos}) == 1
    assert all(isinstance(value, float) and np.isfinite(value) for info in infos for value in info.values())
    formats = [[name for name, value in info.items() if name.startswith("format_") and value] for info in infos]
    assert formats == [["format_valid"], ["format_not_a_diff"], ["format_valid"], ["format_not_a_diff"]]


def test_streams_of_another_length_are_refused() -> None:
    output = RolloutOutput(prompt_ids=[1], response_ids=[2, 3], response_mask=[1, 1], metrics={})
    with pytest.raises(ValueError, match="3 tokens for a response of 2"):
        output.with_streams(masked_streams(3, FailureCause.INFRA)).as_dict()


def test_verls_last_token_reward_is_overridden() -> None:
    """The base class puts the scalar on the last token; ours must not come on top of it."""
    rewards = np.array([0.25, -1.0, 0.0])
    streams = TokenStreams(rewards, np.ones(3), np.ones(3, dtype=bool), -0.75, FailureCause.NONE)
    output = RolloutOutput(prompt_ids=[1], response_ids=[2, 3, 4], response_mask=[1, 1, 1], metrics={})
    fields = output.with_streams(streams).as_dict()
    torch.testing.assert_close(fields["rm_scores"], torch.tensor([0.25, -1.0, 0.0]))
    assert output.reward_score == -0.75


def test_the_registry_names_this_class() -> None:
    """agent_loops.yaml is read by name in another process: a renamed class would fail there only."""
    path = Path(agent_loop.__file__).with_name("agent_loops.yaml")
    (entry,) = OmegaConf.load(path)
    assert entry._target_ == f"{SingleTurnLoop.__module__}.{SingleTurnLoop.__qualname__}"
