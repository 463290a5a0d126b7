"""verl's replay buffer with our polling interval and a deadline. Extension point: `trainer.v1.sampler.custom_sampler`.

verl polls every two seconds, which puts a floor under each step, and waits for ever if a rollout worker has died.
"""

from __future__ import annotations

import time
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class RolloutTimeoutError(RuntimeError):
    """Responses did not arrive in time."""


class DeadlineReplayBuffer(ReplayBuffer):
    """`sampler_kwargs` holds poll_interval_s and timeout_s, both in seconds."""

    def __init__(self, *, sampler_kwargs: Any, **kwargs: Any) -> None:
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=float(sampler_kwargs["poll_interval_s"]), **kwargs
        )
        self._timeout_s = float(sampler_kwargs["timeout_s"])
        self._deadline = float("inf")

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        self._deadline = time.monotonic() + self._timeout_s
        return super().sample(*args, **kwargs)

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        if time.monotonic() > self._deadline:
            waiting = {name: len(keys) for name, keys in self.running_keys.items() if keys}
            raise RolloutTimeoutError(
                f"No complete batch of responses within verl.rollout_timeout_s={self._timeout_s:g} s (prompts still running: "
                f"{waiting or 'none: a rollout worker has probably died'}). See the logs folder of the stage."
            )
