"""Policies without a model: the reference patch, a patch that changes nothing, and predictions from a file.

The first two bracket every benchmark: with `gold` all instances must resolve, with `noop` none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from boostapr.errors import UserError
from boostapr.files import read_jsonl
from envs.policies import Request, Response
from envs.tasks import BugInstance

_NOTHING = "NO_CHANGE_BY_BOOSTAPR.txt"


class FixedPolicy:
    """Answers from a function of the instance that gives its responses, best first; may give fewer than asked for."""

    def __init__(self, answers: Callable[[BugInstance], list[bytes]]) -> None:
        self._answers = answers

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[Request, list[Response]]]:
        for request in requests:
            answers = self._answers(request.instance)[: request.num_samples]
            yield request, [Response(data) for data in answers]

    def __enter__(self) -> FixedPolicy:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def gold() -> FixedPolicy:
    """The reference patches. Raises UserError for an instance that has none, or whose response mode is code."""
    return FixedPolicy(lambda instance: [_reference(instance)])


def noop() -> FixedPolicy:
    """Answers that are well-formed and change no behaviour: whatever they resolve, the tests do not test."""
    return FixedPolicy(lambda instance: [_no_change(instance)])


def predictions(path: Path) -> FixedPolicy:
    """Responses from a JSON-lines file: `instance_id` and `model_patch` (SWE-bench's name) or `response` per line.

    Several lines of one instance are its samples, in file order. An instance without a line is answered by nothing: it
    stays in the denominator, unresolved.

    Raises:
        UserError: the file is missing, or a line lacks a field (file, line and field are named).
    """
    if not path.is_file():
        raise UserError(f"{path}: no such predictions file (evaluate.systems.predictions.path)")
    answers: dict[str, list[bytes]] = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        text = row.get("response", row.get("model_patch"))
        if not isinstance(row.get("instance_id"), str) or not isinstance(text, str):
            raise UserError(
                f"{path}, row {number}: needs `instance_id` and `response` (or `model_patch`), both strings"
            )
        answers.setdefault(row["instance_id"], []).append(text.encode())
    return FixedPolicy(lambda instance: answers.get(instance.instance_id, [b""]))


def _reference(instance: BugInstance) -> bytes:
    if instance.output_mode != "diff" or not instance.patch:
        raise UserError(
            f"{instance.instance_id}: has no reference patch in diff form, so the gold policy cannot answer it"
        )
    return instance.patch.encode()


def _no_change(instance: BugInstance) -> bytes:
    if instance.output_mode == "code":
        return instance.files[str(instance.target)].encode()
    return (
        f"diff --git a/{_NOTHING} b/{_NOTHING}\nnew file mode 100644\n--- /dev/null\n+++ b/{_NOTHING}\n"
        "@@ -0,0 +1 @@\n+This file changes nothing.\n"
    ).encode()
