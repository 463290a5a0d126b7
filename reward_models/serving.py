"""The reward models as a Ray actor: requests of many rollouts are gathered into batches (stage III).

`start_reward_server("rewards", ...)` once; then `await ray.get_actor("rewards").score.remote([response])` from any process.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from reward_models.scorer import RewardScorer, Score
from reward_models.settings import ServingSettings


class Scorer(Protocol):
    """What the batcher needs of `RewardScorer`."""

    def score(self, responses: Sequence[bytes | str], granularity: str) -> list[Score]: ...


class MicroBatcher:
    """Gathers concurrent requests into batches of at most `max_batch` responses; none waits longer than `wait_ms` for company.

    A request larger than `max_batch` is scored whole. While one batch is scored, the next one gathers.
    """

    def __init__(self, scorer: Scorer, granularity: str, max_batch: int, wait_ms: float) -> None:
        self._scorer = scorer
        self._granularity = granularity
        self._max_batch = max_batch
        self._wait_s = wait_ms / 1000
        self._queue: asyncio.Queue[tuple[Sequence[bytes | str], asyncio.Future[list[Score]]]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self.num_batches = 0
        self.num_responses = 0
        self.busy_s = 0.0

    async def score(self, responses: Sequence[bytes | str]) -> list[Score]:
        """Scores of some responses, in order; raises what the scorer raised for the batch that they were in."""
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        answer: asyncio.Future[list[Score]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((list(responses), answer))
        return await answer

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            deadline = time.monotonic() + self._wait_s
            while sum(len(responses) for responses, _ in batch) < self._max_batch:
                try:
                    batch.append(await asyncio.wait_for(self._queue.get(), deadline - time.monotonic()))
                except TimeoutError:
                    break
            await self._answer(batch)

    async def _answer(self, batch: Sequence[tuple[Sequence[bytes | str], "asyncio.Future[list[Score]]"]]) -> None:
        flat = [response for responses, _ in batch for response in responses]
        started = time.monotonic()
        try:
            # In a thread, so that the actor goes on taking requests.
            scores = await asyncio.to_thread(self._scorer.score, flat, self._granularity)
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        self.num_batches += 1
        self.num_responses += len(flat)
        self.busy_s += time.monotonic() - started
        for responses, answer in batch:
            own, scores = scores[: len(responses)], scores[len(responses) :]
            if not answer.done():  # a caller may have given up
                answer.set_result(own)


class RewardServer:
    """The actor's class: loads the models in its own process and answers through a `MicroBatcher`."""

    def __init__(self, r_seq_dir: Path, r_line_dir: Path | None, granularity: str, settings: ServingSettings) -> None:
        import torch

        if settings.num_gpus == 0:
            torch.set_num_threads(settings.num_threads)
        device = "cuda" if settings.num_gpus else "cpu"
        scorer = RewardScorer.load(r_seq_dir, r_line_dir, settings.max_batch, device)
        self._batcher = MicroBatcher(scorer, granularity, settings.max_batch, settings.wait_ms)

    async def score(self, responses: Sequence[bytes | str]) -> list[Score]:
        """Scores of some responses, in order."""
        return await self._batcher.score(responses)

    async def statistics(self) -> dict[str, float]:
        """How many responses were scored in how many batches, and the seconds spent on it."""
        batcher = self._batcher
        return {
            "num_batches": batcher.num_batches,
            "num_responses": batcher.num_responses,
            "busy_s": round(batcher.busy_s, 3),
        }


def start_reward_server(
    name: str, r_seq_dir: Path, r_line_dir: Path | None, granularity: str, settings: ServingSettings
) -> Any:
    """Start the actor `name` in the running Ray cluster and wait until its models are loaded.

    It ends with the process that started it. Returns the handle; `ray.get_actor(name)` gives the same one elsewhere in the
    namespace.

    Raises:
        ray.exceptions.RayActorError: the models could not be loaded; the message holds the reason.
        ValueError: an actor of that name exists.
    """
    import ray

    actor = ray.remote(RewardServer).options(
        name=name, num_cpus=settings.num_cpus, num_gpus=settings.num_gpus, max_concurrency=1000
    )
    handle: Any = actor.remote(r_seq_dir, r_line_dir, granularity, settings)
    ray.get(handle.statistics.remote())
    return handle
