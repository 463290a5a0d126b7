"""One repair attempt inside verl: prompt ids in, response ids out, token streams beside them.

Extension points: the agent loop registry (agent_loops.yaml) and a subclass of `AgentLoopOutput`, whose `as_dict` decides
which per-token fields reach the trainer. verl's own output carries one float per response.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import torch
from omegaconf import OmegaConf
from pydantic import PrivateAttr
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from boostapr.credit import CREDIT, CreditSettings, Rollout, TokenStreams, token_bytes
from boostapr.outcomes import FailureCause, Outcome, Status
from boostapr.patches import PatchFormat, parse_patch
from boostapr.tokens import encode_prompt

SCORER = "boostapr_scorer"
EXECUTOR = "boostapr_executor"

log = logging.getLogger(__name__)


class Score(Protocol):
    """What the reward models say of one response: seq is R_seq, units R_line's score of each unit."""

    seq: float
    units: list[float]


class Scorer(Protocol):
    """The Ray actor named `SCORER`. It batches concurrent calls."""

    async def score(self, responses: list[bytes]) -> list[Score]:
        """One score per response, in order."""


class Executor(Protocol):
    """The Ray actor named `EXECUTOR`."""

    async def execute(self, instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
        """`Outcome.to_dict()` and the share of required tests that passed (nan for an infra outcome)."""


class RolloutOutput(AgentLoopOutput):
    """verl's output plus token streams (design: section 3), one value per response token."""

    _streams: TokenStreams = PrivateAttr()

    def with_streams(self, streams: TokenStreams) -> RolloutOutput:
        """Attach the streams; their sum becomes verl's scalar reward, so that verl asks no reward manager."""
        self._streams = streams
        self.reward_score = float(np.sum(streams.token_rewards))
        return self

    def as_dict(self) -> dict[str, Any]:
        """The fields that the TransferQueue stores: per token rm_scores, loss_weights, in_loss; per row group_reward, cause."""
        fields: dict[str, Any] = super().as_dict()
        streams, length = self._streams, fields["responses"].size(0)
        if len(streams.token_rewards) != length:
            raise ValueError(f"token streams of {len(streams.token_rewards)} tokens for a response of {length}")
        fields["rm_scores"] = torch.as_tensor(np.asarray(streams.token_rewards), dtype=torch.float32)
        fields["loss_weights"] = torch.as_tensor(np.asarray(streams.loss_weights), dtype=torch.float32)
        fields["in_loss"] = torch.as_tensor(np.asarray(streams.in_loss), dtype=torch.int64)
        fields["group_reward"] = torch.tensor([streams.group_reward], dtype=torch.float32)
        fields["cause"] = str(streams.cause)
        return fields


@dataclass(frozen=True)
class Episode:
    """What became of one response."""

    rollout: Rollout
    streams: TokenStreams
    executed: bool = False
    pass_rate: float = 0.0
    error: str = ""


def masked_streams(length: int, cause: FailureCause) -> TokenStreams:
    """Streams of a response that must not teach anything: no reward, no gradient, and nan for group statistics to skip."""
    return TokenStreams(
        token_rewards=np.zeros(length),
        loss_weights=np.zeros(length),
        in_loss=np.zeros(length, dtype=bool),
        group_reward=float("nan"),
        cause=cause,
    )


class SingleTurnLoop(AgentLoopBase):
    """One prompt, one response, scored by the reward models; validation responses are executed too.

    Nothing raises out of `run`: one raising session would fail its whole prompt group. A session that fails through no fault
    of the policy returns a masked rollout with the error beside it, and the trainer stops if there are too many.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["hf_model_type"] = None  # verl's multi-turn token builder for qwen2 is of no use here and is picky
        super().__init__(*args, **kwargs)
        self.tokenizer: Any  # verl says AutoTokenizer, which is a factory
        self.credit = _credit_settings(OmegaConf.to_yaml(self.config.boostapr.credit))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> RolloutOutput:
        """`row` is what `PromptDataset` returns: raw_prompt, instance_id, execute and more."""
        prompt: list[int] = []
        try:
            prompt = encode_prompt(self.tokenizer, row["raw_prompt"])
            token_output = await self.server_manager.generate(
                request_id=uuid4().hex, prompt_ids=prompt, sampling_params=dict(sampling_params)
            )
            ids = list(token_output.token_ids)[: self.rollout_config.response_length]
            if not ids:
                raise RuntimeError(f"vLLM returned no token (stop reason: {token_output.stop_reason})")
        except Exception:
            log.exception("no response to %s", row["instance_id"])
            return self._lost(prompt, int(row["global_steps"]), traceback.format_exc())
        episode = await self._judge(ids, row["instance_id"], bool(row["execute"]))
        return self._output(
            prompt, ids, list(token_output.log_probs or [])[: len(ids)], token_output.extra_fields, episode
        )

    async def _judge(self, ids: list[int], instance_id: str, execute: bool) -> Episode:
        """Score, execute where asked, and turn both into token streams."""
        tokens = token_bytes(self.tokenizer, ids)
        rollout = Rollout(
            response=b"".join(tokens),
            tokens=tokens,
            response_mask=np.ones(len(ids), dtype=bool),
            outcome=None,
            seq_score=None,
            unit_scores=None,
        )
        try:
            (score,), graded = await asyncio.gather(
                _actor(SCORER).score.remote([rollout.response]),
                _execute(instance_id, rollout.response) if execute else _nothing(),
            )
            outcome, pass_rate = (Outcome.from_dict(graded[0]), graded[1]) if graded else (None, 0.0)
            rollout = replace(rollout, outcome=outcome, seq_score=score.seq, unit_scores=score.units)
            streams = CREDIT[self.credit.algorithm](rollout, self.credit)
            return Episode(rollout, streams, executed=outcome is not None, pass_rate=pass_rate)
        except Exception:
            log.exception("a response to %s could not be judged", instance_id)
            return Episode(rollout, masked_streams(len(ids), FailureCause.INFRA), error=traceback.format_exc())

    def _output(
        self, prompt: list[int], ids: list[int], logprobs: list[float], extra: dict[str, Any], episode: Episode
    ) -> RolloutOutput:
        return RolloutOutput(
            prompt_ids=prompt,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=logprobs or None,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={
                **extra,
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": episode_info(episode, ids[-1] == self.tokenizer.eos_token_id),
                "error": episode.error,
            },
        ).with_streams(episode.streams)

    def _lost(self, prompt: list[int], step: int, error: str) -> RolloutOutput:
        """A rollout without a response: one end token that counts for nothing."""
        eos = self.tokenizer.eos_token_id
        rollout = Rollout(
            response=b"",
            tokens=[b""],
            response_mask=np.zeros(1, dtype=bool),
            outcome=None,
            seq_score=None,
            unit_scores=None,
        )
        episode = Episode(rollout, masked_streams(1, FailureCause.INFRA), error=error)
        version = max(step - 1, 0)  # of the weights that would have answered; verl computes staleness from it
        steps = {"min_global_steps": version, "max_global_steps": version}
        output = self._output(prompt or [eos], [eos], [0.0], steps, episode)
        output.response_mask = [0]
        return output


def episode_info(episode: Episode, ended: bool) -> dict[str, float]:
    """Scalars for metrics and validation; always the same keys, since verl takes them from the first row of a batch.

    return_: sum of token rewards. seq_score: R_seq. shaping: what the credit function added to it (r_fmt, Eq. 7).
    fallback: the score went to the last token for want of units.
    resolved, applied and pass_rate are 0 where executed is 0. lost: masked by an error of ours, not of the policy.
    """
    rollout, streams = episode.rollout, episode.streams
    total = float(np.sum(streams.token_rewards))
    seq_score = rollout.seq_score or 0.0
    patch_format = parse_patch(rollout.response).format
    outcome = rollout.outcome
    infra = outcome is not None and outcome.status is Status.INFRA
    info = {
        "return_": total,
        "seq_score": seq_score,
        "shaping": total - seq_score,
        "num_units": float(len(rollout.unit_scores or ())),
        "rewarded_tokens": float(np.count_nonzero(streams.token_rewards)),
        "fallback": float(streams.fallback),
        "ended": float(ended),
        "lost": float(bool(episode.error)),
        "masked": float(not np.any(streams.in_loss)),
        "executed": float(episode.executed and not infra),
        "infra": float(infra),
        "resolved": float(outcome is not None and outcome.resolved),
        "applied": float(outcome is not None and outcome.applied),
        "pass_rate": 0.0 if infra else episode.pass_rate,
    }
    return info | {f"format_{kind}": float(patch_format is kind) for kind in PatchFormat}


@lru_cache(maxsize=1)
def _credit_settings(text: str) -> CreditSettings:
    return CreditSettings.model_validate(OmegaConf.to_container(OmegaConf.create(text)))


@lru_cache(maxsize=2)
def _actor(name: str) -> Any:
    import ray

    return ray.get_actor(name)


async def _execute(instance_id: str, response: bytes) -> tuple[dict[str, Any], float]:
    graded: tuple[dict[str, Any], float] = await _actor(EXECUTOR).execute.remote(instance_id, response)
    return graded


async def _nothing() -> None:
    return None
