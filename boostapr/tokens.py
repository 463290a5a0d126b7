"""Do training, vLLM and verl read prompts as the same token ids? A model that meets other ids than in training fails silently.

transformers may pick another tokenizer class for a model folder (a Qwen2 config forces its own splitting rules onto any
BPE): every prompt then has other ids than in training, and nothing complains. So training leaves a few prompts with their
ids beside the model, and whatever loads the model later compares, before any work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boostapr.errors import UserError
from boostapr.files import write_json
from boostapr.prompts import PROMPT_VERSION, Message

FILE = "boostapr_tokens.json"


class TokenMismatchError(UserError):
    """The ids of a prompt differ from those seen in training."""


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins, by the tokenizer's own chat template."""
    ids = tokenizer.apply_chat_template(list(messages), tokenize=True, add_generation_prompt=True, return_dict=False)
    return [int(i) for i in ids]


def write_fingerprint(model_dir: Path, tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> None:
    """Leave `boostapr_tokens.json` in a model folder; `tokenizer` is the one that training used.

    Raises ValueError for no conversations: nothing could be compared later.
    """
    if not conversations:
        raise ValueError("a token fingerprint needs at least one prompt")
    prompts = [{"messages": list(c), "ids": encode_prompt(tokenizer, c)} for c in conversations]
    record = {"prompt_version": PROMPT_VERSION, "eos_token_id": tokenizer.eos_token_id, "prompts": prompts}
    write_json(model_dir / FILE, record)


def has_fingerprint(model_dir: str | Path) -> bool:
    """False for a model from elsewhere (or a hub name): there is nothing to compare with."""
    return (Path(model_dir) / FILE).is_file()


def read_fingerprint(model_dir: str | Path) -> dict[str, Any]:
    """Raises TokenMismatchError if the folder has none, or if prompts were worded differently when it was trained."""
    path = Path(model_dir) / FILE
    if not path.is_file():
        raise TokenMismatchError(
            f"{path} is missing, so nothing shows that this tokenizer is the one of training. "
            "The sft stage writes it; for a model from elsewhere call boostapr.tokens.write_fingerprint."
        )
    content: dict[str, Any] = json.loads(path.read_text())
    version = content.get("prompt_version", PROMPT_VERSION)
    if version != PROMPT_VERSION:
        raise TokenMismatchError(
            f"{model_dir} was trained on prompts of version {version}, this boostapr has version {PROMPT_VERSION}: "
            "train it again, or use the boostapr that trained it."
        )
    return content


def check_fingerprint(fingerprint: Mapping[str, Any], tokenizer: Any, where: str) -> None:
    """Compare a tokenizer with training's ids. Raises TokenMismatchError naming `where` and the first difference."""
    check_ids(fingerprint, [encode_prompt(tokenizer, prompt["messages"]) for prompt in fingerprint["prompts"]], where)
    if tokenizer.eos_token_id != fingerprint["eos_token_id"]:
        raise TokenMismatchError(
            f"{where} ends a response with token {tokenizer.eos_token_id}, training did with {fingerprint['eos_token_id']}."
        )


def check_ids(fingerprint: Mapping[str, Any], ids: Sequence[Sequence[int]], where: str) -> None:
    """As `check_fingerprint`, for ids that were made in another process."""
    for number, (prompt, got) in enumerate(zip(fingerprint["prompts"], ids, strict=True)):
        want = prompt["ids"]
        if list(got) == want:
            continue
        at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
        raise TokenMismatchError(
            f"{where} reads prompt {number} of {FILE} as other tokens than training did: from position {at} on "
            f"{list(got[at : at + 8])} instead of {want[at : at + 8]} ({len(got)} tokens, {len(want)} in training). The "
            "tokenizer files of the model folder were changed, or another tokenizer class was picked for them: compare the "
            "installed transformers with the tested set (`boostapr doctor`)."
        )
