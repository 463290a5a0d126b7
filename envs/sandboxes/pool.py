"""Many runs at once: worker processes, each with a warm sandbox of its own."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from boostapr.outcomes import Outcome, Status
from envs.sandboxes.base import SandboxUnavailable
from envs.sandboxes.cache import ResultCache, cache_key
from envs.sandboxes.guest import wire
from envs.sandboxes.settings import SandboxSettings
from envs.tasks import BugInstance, to_json

logger = logging.getLogger(__name__)

_STOP_WAIT_S = 20.0


class WorkerDied(Exception):
    """The worker process ended in the middle of a conversation."""


class Worker:
    """The driver's end of one worker process (envs/sandboxes/worker.py). Raises SandboxUnavailable at start."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "envs.sandboxes.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the driver's to handle
        )
        reply = self._exchange(settings.model_dump(mode="json"), [])
        if reply["error"]:
            self.close()
            raise SandboxUnavailable(reply["error"])

    def _exchange(self, header: dict[str, object], blobs: list[bytes]) -> dict[str, str]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            wire.send(process.stdin.fileno(), header, blobs)
            return wire.receive(process.stdout.fileno())[0]
        except (OSError, ValueError, wire.Closed):
            self.close()
            raise WorkerDied(f"a sandbox worker ended with exit code {process.returncode}") from None

    def run(self, instance: BugInstance, response: bytes) -> Outcome:
        """One run. Raises WorkerDied."""
        return Outcome.from_dict(self._exchange(to_json(instance), [response]))

    def close(self) -> None:
        """Ask for a tidy end, insist if it does not come. Idempotent, and may be called from another thread."""
        process = self._process
        process.terminate()
        try:
            process.wait(_STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Pool:
    """Threads that each drive one worker through a shared queue of work."""

    def __init__(self, settings: SandboxSettings, num_items: int) -> None:
        # The driver looks into the cache, and tells: its workers need not.
        self.settings = settings.model_copy(update={"cache": None})
        self.todo: queue.SimpleQueue[tuple[str, BugInstance, bytes]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[str, Outcome] | BaseException] = queue.SimpleQueue()
        self.stopping = threading.Event()
        self.workers: set[Worker] = set()
        count = min(settings.workers, num_items)
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]

    def _serve(self) -> None:
        worker: Worker | None = None
        try:
            while not self.stopping.is_set():
                try:
                    key, instance, response = self.todo.get_nowait()
                except queue.Empty:
                    return
                outcome, wait = None, self.settings.retry_backoff_s
                for attempt in range(self.settings.infra_retries + 1):
                    if worker is None:
                        worker = Worker(self.settings)
                        self.workers.add(worker)
                        if self.stopping.is_set():  # `stop` may have listed the workers before this one was there
                            return
                    try:
                        outcome = worker.run(instance, response)
                        break
                    except WorkerDied as error:
                        if self.stopping.is_set():
                            return
                        self.workers.discard(worker)
                        worker = None
                        outcome = Outcome(Status.INFRA, detail=f"{error}, {attempt + 1} times")
                        logger.warning("%s (instance %s); starting another", error, instance.instance_id)
                        self.stopping.wait(wait)
                        wait *= 2
                assert outcome is not None
                self.done.put((key, outcome))
        except BaseException as error:
            self.done.put(error)
        finally:
            if worker is not None:
                worker.close()

    def stop(self) -> None:
        """End all workers, also those in the middle of a run."""
        self.stopping.set()
        for worker in list(self.workers):
            worker.close()
        for thread in self.threads:
            thread.join()


def run_many(
    settings: SandboxSettings, items: Sequence[tuple[BugInstance, bytes]], progress: str | None
) -> Iterator[tuple[int, Outcome]]:
    """Run (instance, response) pairs on `settings.workers` worker processes; yields (index in items, Outcome) as they
    complete, each index once.

    Identical pairs run once. Known results come from the cache, new ones go into it. A worker that dies is replaced
    and its item tried again, then it is `infra`. progress: the bar's label, None for no bar. Closing the iterator early
    stops everything. Raises SandboxUnavailable if the backend cannot work here.
    """
    indices: dict[str, list[int]] = {}
    for index, (instance, response) in enumerate(items):
        indices.setdefault(cache_key(instance, response, settings), []).append(index)
    cache = ResultCache(settings.cache) if settings.cache else None
    bar = tqdm(total=len(items), desc=progress, unit="run", disable=progress is None)
    pool: _Pool | None = None
    start, saved_s, num_known = time.monotonic(), 0.0, 0
    try:
        missing = []
        for key, same in indices.items():
            outcome = cache.get(key) if cache else None
            if outcome is None:
                missing.append(key)
                continue
            num_known += 1
            saved_s += outcome.wall_s
            for index in same:
                bar.update()
                yield index, outcome
        pool = _Pool(settings, len(missing))
        for key in missing:
            pool.todo.put((key, *items[indices[key][0]]))
        for thread in pool.threads:
            thread.start()
        for _ in missing:
            result = pool.done.get()
            if isinstance(result, BaseException):
                raise result
            key, outcome = result
            if cache:
                cache.put(key, outcome)
            for index in indices[key]:
                bar.update()
                yield index, outcome
        logger.info(
            "%d runs in %.1f s: %d pairs executed, %d known (%.1f s saved), %d duplicates",
            len(items), time.monotonic() - start, len(missing), num_known, saved_s, len(items) - len(indices),
        )  # fmt: skip
    finally:
        if pool is not None:
            pool.stop()
        bar.close()
        if cache is not None:
            cache.close()
