"""The prompts of a run. Extension point: `data.custom_cls`.

verl's own dataset goes through Hugging Face's cache and drops prompts that are too long without a word; this one reads the
stage's JSON lines and stops at the first prompt that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from boostapr.errors import UserError
from boostapr.files import read_jsonl
from boostapr.tokens import encode_prompt


class PromptDataset(Dataset[dict[str, Any]]):
    """Rows {"instance_id", "messages", "source", "execute"} as verl's trainer wants them.

    source: the split, which names the validation metrics; execute: run the response in a sandbox.
    """

    def __init__(
        self, data_files: str, tokenizer: Any, config: Mapping[str, Any], processor: Any = None, max_samples: int = -1
    ) -> None:
        self.rows = read_jsonl(Path(data_files))
        if max_samples > 0:
            self.rows = self.rows[:max_samples]
        if not self.rows:
            raise UserError(f"{data_files} holds no prompt.")
        check_lengths(self.rows, tokenizer, int(config["max_prompt_length"]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {
            "raw_prompt": row["messages"],
            "index": index,
            "instance_id": row["instance_id"],
            "data_source": row["source"],
            "execute": row["execute"],
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),  # verl wants at least one tensor in a batch
        }


def check_lengths(rows: Sequence[Mapping[str, Any]], tokenizer: Any, limit: int) -> None:
    """Raises UserError naming the longest prompt if any has more than `limit` tokens."""
    lengths = {row["instance_id"]: len(encode_prompt(tokenizer, row["messages"])) for row in rows}
    worst = max(lengths, key=lambda name: lengths[name])
    if lengths[worst] > limit:
        over = sum(length > limit for length in lengths.values())
        raise UserError(
            f"{over} of {len(lengths)} prompts are longer than ppo.max_prompt_tokens={limit}; the longest is {worst} with "
            f"{lengths[worst]} tokens. Raise the limit (and max_model_len), or leave those instances out."
        )
