"""The reward server: concurrent rollouts share batches, everyone gets their own scores, and errors reach the caller."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from reward_models.scorer import RewardScorer, Score
from reward_models.serving import MicroBatcher, start_reward_server
from reward_models.settings import ServingSettings


class Recorder:
    """A scorer that notes its batches: the score of a response is its length."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[bytes | str]] = []
        self.seconds = seconds

    def score(self, responses: Sequence[bytes | str], granularity: str) -> list[Score]:
        self.batches.append(list(responses))
        time.sleep(self.seconds)
        if b"poison" in responses:
            raise RuntimeError("cannot score this")
        return [Score(float(len(response)), []) for response in responses]


def test_concurrent_requests_share_a_batch_and_keep_their_order() -> None:
    async def scenario() -> None:
        recorder = Recorder()
        batcher = MicroBatcher(recorder, "edit_line", max_batch=8, wait_ms=50)
        requests = [[b"x" * n, b"y" * (n + 20)] for n in range(4)]
        answers = await asyncio.gather(*(batcher.score(request) for request in requests))
        assert [[s.seq for s in own] for own in answers] == [[n, n + 20] for n in range(4)]
        assert len(recorder.batches) == 1
        assert batcher.num_responses == 8

    asyncio.run(scenario())


def test_no_request_waits_longer_than_wait_ms() -> None:
    async def scenario() -> None:
        batcher = MicroBatcher(Recorder(), "edit_line", max_batch=1000, wait_ms=30)
        started = time.monotonic()
        await batcher.score([b"alone"])
        assert 0.02 < time.monotonic() - started < 1.0

    asyncio.run(scenario())


def test_a_full_batch_does_not_wait() -> None:
    async def scenario() -> None:
        recorder = Recorder()
        batcher = MicroBatcher(recorder, "edit_line", max_batch=2, wait_ms=10_000)
        answers = await asyncio.wait_for(asyncio.gather(batcher.score([b"a"]), batcher.score([b"bb"])), timeout=5)
        assert [[s.seq for s in own] for own in answers] == [[1.0], [2.0]]
        assert recorder.batches == [[b"a", b"bb"]]

    asyncio.run(scenario())


def test_requests_gather_while_a_batch_is_scored() -> None:
    """The event loop stays free during scoring: what arrives meanwhile makes one next batch."""

    async def scenario() -> None:
        recorder = Recorder(seconds=0.2)
        batcher = MicroBatcher(recorder, "edit_line", max_batch=16, wait_ms=1)
        first = asyncio.create_task(batcher.score([b"first"]))
        await asyncio.sleep(0.05)
        later = [asyncio.create_task(batcher.score([b"later"])) for _ in range(5)]
        await asyncio.gather(first, *later)
        assert [len(batch) for batch in recorder.batches] == [1, 5]

    asyncio.run(scenario())


def test_an_error_reaches_its_callers_and_the_server_lives_on() -> None:
    async def scenario() -> None:
        batcher = MicroBatcher(Recorder(), "edit_line", max_batch=1, wait_ms=0)
        with pytest.raises(RuntimeError, match="cannot score this"):
            await batcher.score([b"poison"])
        assert [s.seq for s in await batcher.score([b"four"])] == [4.0]

    asyncio.run(scenario())


@pytest.mark.integration
def test_the_ray_actor_scores_like_the_scorer(saved_rewards: tuple[Path, Path]) -> None:
    """Through Ray: a named actor, many concurrent callers, the scores of a local scorer, and a clear error for a bad folder."""
    import ray
    from tiny_backbone import make_diff

    settings = ServingSettings(max_batch=16, wait_ms=5, num_cpus=0, num_gpus=0, num_threads=1)
    responses = [make_diff("a.py", [(n + 1, "def f():", "    x", f"    y{n}")]).encode() for n in range(40)]
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        # The server lives as long as this handle.
        server = start_reward_server("rewards", *saved_rewards, "edit_line", settings)
        handle = ray.get_actor("rewards")
        assert handle == server
        answers = [scores[0] for scores in ray.get([handle.score.remote([r]) for r in responses])]
        local = RewardScorer.load(*saved_rewards, batch_size=16, device="cpu").score(responses, "edit_line")
        assert [a.seq for a in answers] == pytest.approx([s.seq for s in local], abs=1e-5)
        assert [a.units for a in answers] == [pytest.approx(s.units, abs=1e-5) for s in local]
        statistics = ray.get(handle.statistics.remote())
        assert statistics["num_responses"] == 40 and statistics["num_batches"] < 40
        with pytest.raises(ray.exceptions.RayActorError, match="no trained R_seq here"):
            start_reward_server("broken", saved_rewards[0] / "missing", None, "edit_line", settings)
    finally:
        ray.shutdown()
