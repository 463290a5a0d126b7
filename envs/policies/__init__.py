"""Policies: whatever answers a bug instance with a response. An engine is one file; `fixed` needs no model.

A stage asks for many responses at once (`Request`) and gets them as they finish. Importing this package loads neither
torch nor vLLM.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field

from boostapr.config import Settings
from envs.tasks import BugInstance

__all__ = ["Policy", "Request", "Response", "Sampling"]

# How a response ended: by itself, cut at max_tokens or the context's end, or never begun as the prompt fills the context.
Finish = Literal["stop", "length", "prompt_too_long"]


class Sampling(Settings):
    """How tokens are drawn. temperature 0 is greedy decoding; max_tokens counts the end token."""

    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    max_tokens: int = Field(gt=0)


@dataclass(frozen=True)
class Request:
    """`num_samples` responses to one instance are wanted. `key` is the caller's own."""

    key: Any
    instance: BugInstance
    sampling: Sampling
    num_samples: int = 1


@dataclass(frozen=True)
class Response:
    """One answer, byte for byte as the model wrote it (special tokens leave nothing, white space stays).

    num_tokens counts the end token; it is 0 where no model was asked.
    """

    data: bytes
    num_tokens: int = 0
    finish: Finish = "stop"

    def to_row(self) -> dict[str, Any]:
        """JSON-ready; `from_row` is its inverse. Bytes that are not UTF-8 are kept in `response_base64`."""
        text = self.data.decode("utf-8", "replace")
        row: dict[str, Any] = {"response": text, "num_tokens": self.num_tokens, "finish": self.finish}
        if text.encode() != self.data:
            row["response_base64"] = base64.b64encode(self.data).decode()
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Response:
        """The response of a stored row; other keys of the row are ignored."""
        raw = row.get("response_base64")
        data = base64.b64decode(raw) if raw is not None else row["response"].encode()
        return cls(data, row["num_tokens"], row["finish"])


class Policy(Protocol):
    """Answers requests. A context manager: on leaving it, no process or memory of an engine is left."""

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[Request, list[Response]]]:
        """The responses of each request once all of them are there, in the order in which they finish."""
        ...

    def __enter__(self) -> Policy: ...

    def __exit__(self, *error: object) -> None: ...
