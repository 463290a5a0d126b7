"""What the stages share: reading splits, asking policies so that a kill loses nothing, rows of executed answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boostapr.config import ROOT, SplitSettings
from boostapr.errors import UserError
from boostapr.files import JsonlWriter, write_atomic
from boostapr.outcomes import Status
from envs.policies import Policy, Request, Response, Sampling
from envs.tasks import BugInstance, InstanceError, load_instances
from stages.settings import BenchmarkSettings

RowKey = tuple[str, str, int]  # instance id, mode, number of the sample
PolicyOpener = Callable[[int], Policy]  # from the seed of its engine


def load_split(benchmark: BenchmarkSettings, data: SplitSettings) -> list[BugInstance]:
    """The instances of a split that `data` selects, in its order.

    Raises:
        UserError: there is no such split, its file is missing or holds something else, or none is left.
    """
    if benchmark.kind == "microbugs":
        from envs.benchmarks import microbugs

        instances = list(microbugs.load_split(data.split))
    else:
        if data.split not in benchmark.files:
            known = ", ".join(sorted(benchmark.files)) or "none"
            raise UserError(f"`benchmark.files` has no split `{data.split}`; it has: {known}.")
        try:
            instances = load_instances(benchmark.files[data.split])
        except FileNotFoundError:
            raise UserError(f"{benchmark.files[data.split]}: no such file (`benchmark.files.{data.split}`)") from None
        except InstanceError as error:
            raise UserError(str(error)) from None
    if not instances:
        raise UserError(f"Split `{data.split}` of benchmark `{benchmark.kind}` holds no instances.")
    if data.skip >= len(instances):
        raise UserError(f"Split `{data.split}` has {len(instances)} instances: skip={data.skip} leaves none.")
    return instances[data.skip :][: data.num_instances]


def model_path(name: str) -> str:
    """Where transformers and vLLM find a model: a folder (a relative one from the repository), else a hub name as it is."""
    return str(ROOT / name) if (ROOT / name).is_dir() else name


class ResponseLog:
    """Every response of a policy in one JSON-lines file, written as it comes: what is there is never asked for again.

    Generating and grading are apart, so that a kill while grading does not draw new answers (which would favour those
    that are quick to grade).
    """

    def __init__(self, path: Path) -> None:
        self._rows = JsonlWriter(path)
        self.responses: dict[RowKey, Response] = {
            (row["instance_id"], row["mode"], row["sample"]): Response.from_row(row) for row in self._rows.rows
        }

    def missing(self, instance_id: str, mode: str, num_samples: int) -> list[int]:
        """Numbers of the samples 0 .. num_samples - 1 that are not there."""
        return [k for k in range(num_samples) if (instance_id, mode, k) not in self.responses]

    def write(self, key: RowKey, response: Response) -> None:
        instance_id, mode, sample = key
        self._rows.write({"instance_id": instance_id, "mode": mode, "sample": sample, **response.to_row()})
        self.responses[key] = response

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> ResponseLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def request_missing(
    log: ResponseLog, instances: Sequence[BugInstance], mode: str, num_samples: int, sampling: Sampling
) -> list[Request]:
    """What a policy must still be asked; the key of each request is (log, mode, numbers of the samples)."""
    requests = []
    for instance in instances:
        missing = log.missing(instance.instance_id, mode, num_samples)
        if missing:
            requests.append(Request((log, mode, missing), instance, sampling, len(missing)))
    return requests


def ask(open_policy: PolicyOpener, seed: int, requests: Sequence[Request]) -> None:
    """Open the policy, let it answer all requests, write each answer to the log that its request names, and close it.

    Nothing to ask: the policy is not opened. Its seed depends on what is there already: an engine that resumes must not
    draw the answers before the kill a second time.
    """
    if not requests:
        return
    logs = {id(request.key[0]): request.key[0] for request in requests}
    num_done = sum(len(log.responses) for log in logs.values())
    with open_policy(int(np.random.SeedSequence([seed, num_done]).generate_state(1)[0]) >> 1) as policy:
        for request, responses in policy.generate(requests):
            log, mode, samples = request.key
            for sample, response in zip(samples, responses, strict=False):  # a file of predictions may hold fewer
                log.write((request.instance.instance_id, mode, sample), response)


def graded(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose outcome is a verdict; an `infra` outcome is not, it is executed again when the stage is resumed."""
    return [row for row in rows if row["outcome"]["status"] != Status.INFRA]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole JSON-lines file, atomically: the final form of a file that was appended to in the order of completion."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def status_shares(statuses: Sequence[str]) -> dict[str, float]:
    """Share of every status, for metrics: {"status/resolved": 0.35, ...}, zeros included."""
    total = max(len(statuses), 1)
    return {f"status/{status.value}": sum(s == status for s in statuses) / total for status in Status}
