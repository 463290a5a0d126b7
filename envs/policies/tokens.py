"""Do training, vLLM and verl see the same token ids? A model that meets other ids than it was trained on fails silently.

Training leaves `boostapr_tokens.json` in the model folder: a few prompts with the ids they were trained as. Whatever
loads the model later encodes the same prompts and compares, before any work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from boostapr.errors import UserError
from boostapr.files import write_json
from boostapr.prompts import PROMPT_VERSION, STYLES, Message, repair_messages
from envs.tasks import BugInstance

TOKENS_FILE = "boostapr_tokens.json"


class TokenMismatch(UserError):
    """A tokenizer gives other ids than the model was trained on."""


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Ids of a chat up to the place where the response begins, by the tokenizer's own chat template."""
    ids = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=True, return_dict=False)
    return [int(i) for i in ids]


def write_token_samples(folder: Path, tokenizer: Any, instances: Sequence[BugInstance], template: str) -> None:
    """Leave `boostapr_tokens.json` in a model folder, with prompts of these instances in every style."""
    samples = []
    for instance in instances:
        for style in STYLES:
            messages = repair_messages(instance, style, template)
            samples.append({"messages": messages, "token_ids": prompt_ids(tokenizer, messages)})
    write_json(
        folder / TOKENS_FILE,
        {"prompt_version": PROMPT_VERSION, "template": template, "vocab_size": len(tokenizer), "samples": samples},
    )


def check_tokens(folder: str | Path, encode: Callable[[list[Message]], list[int]], who: str) -> int:
    """Compare `encode` with the ids in the folder's `boostapr_tokens.json`; returns how many prompts were compared.

    A folder without that file (a model from elsewhere) has nothing to compare with: 0.

    Raises:
        TokenMismatch: the first prompt and position where the ids differ, or prompts have changed since training.
    """
    file = Path(folder) / TOKENS_FILE
    if not file.is_file():
        return 0
    record = json.loads(file.read_text())
    if record["prompt_version"] != PROMPT_VERSION:
        raise TokenMismatch(
            f"{folder} was trained on prompts of version {record['prompt_version']}, this boostapr has version "
            f"{PROMPT_VERSION}: train it again, or use the boostapr that trained it."
        )
    for number, sample in enumerate(record["samples"]):
        expected, found = sample["token_ids"], encode(sample["messages"])
        if expected != found:
            at = next(
                (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
                min(len(expected), len(found)),
            )
            raise TokenMismatch(
                f"{who} does not split prompts into tokens as training did for {folder}: prompt {number} of {TOKENS_FILE} "
                f"differs at token {at} ({expected[at : at + 5]} in training, {found[at : at + 5]} now). Check that the "
                "folder's tokenizer files are those of training, and the installed transformers (`boostapr doctor`)."
            )
    return len(record["samples"])
