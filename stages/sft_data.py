"""The data of Stage I: demonstrations as token ids with the prompt masked, batched by length."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from boostapr.errors import UserError
from boostapr.prompts import repair_messages
from boostapr.tokens import encode_prompt
from envs.tasks import BugInstance
from stages.settings import SFTSettings

IGNORED = -100  # label of a token that gives no loss
GROUPED_STEPS = 16  # examples are sorted by length within the data of so many steps


@dataclass(frozen=True)
class Example:
    """One sequence: `input_ids` are prompt, response and end token, of which the first `num_prompt` give no loss (Eq. 2)."""

    instance_id: str
    style: str
    input_ids: list[int]
    num_prompt: int

    def features(self) -> dict[str, list[int]]:
        """What the Trainer reads: ids, and labels that are -100 on the prompt."""
        labels = [IGNORED] * self.num_prompt + self.input_ids[self.num_prompt :]
        return {"input_ids": self.input_ids, "labels": labels}


def make_examples(
    demonstrations: Sequence[Mapping[str, Any]],
    instances: Mapping[str, BugInstance],
    tokenizer: Any,
    settings: SFTSettings,
    seed: int,
) -> tuple[list[Example], list[dict[str, Any]]]:
    """Examples of both styles, and the rows of those that are too long (dropped, never cut: section 3.1).

    "trace" answers with the reasoning trace and the patch, "patch" with the patch alone, each to its own prompt.

    Raises:
        UserError: a demonstration of an instance that the split does not have.
    """
    examples, dropped = [], []
    for row in demonstrations:
        instance = instances.get(row["instance_id"])
        if instance is None:
            raise UserError(
                f"demonstrations.jsonl has {row['instance_id']}, which is not in the split: redo the demonstrations stage."
            )
        answers = {"patch": row["patch"], "trace": row["trace"] + row["patch"]}
        rates = {"patch": settings.patch_examples, "trace": settings.trace_examples}
        for style, answer in answers.items():
            rng = random.Random(f"{seed}-{row['instance_id']}-{row['attempt']}-{style}")
            copies = _round_at_random(rates[style], rng)
            if not copies:
                continue
            prompt = encode_prompt(tokenizer, repair_messages(instance, style, settings.template))
            response = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
            example = Example(instance.instance_id, style, prompt + response, len(prompt))
            if len(example.input_ids) <= settings.max_length:
                examples += [example] * copies
            else:
                key = {"instance_id": instance.instance_id, "attempt": row["attempt"], "style": style}
                dropped.append({**key, "num_tokens": len(example.input_ids), "max_length": settings.max_length})
    return examples, dropped


def _round_at_random(rate: float, rng: random.Random) -> int:
    """A whole number whose expectation is `rate`."""
    return int(rate) + (rng.random() < rate % 1)


def split_by_instance(
    examples: Sequence[Example], validation_share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """(training, validation); all examples of an instance go to the same side."""
    held_out = {
        i for i in {e.instance_id for e in examples} if random.Random(f"{seed}-{i}").random() < validation_share
    }
    train = [e for e in examples if e.instance_id not in held_out]
    if not train:
        raise UserError("`sft.validation_share` leaves no instance to train on: lower it.")
    return train, [e for e in examples if e.instance_id in held_out]


def collate(rows: Sequence[Mapping[str, list[int]]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Rows padded at the right to one length: input_ids, attention_mask, labels, each int64[batch, length]."""
    width = max(len(row["input_ids"]) for row in rows)
    input_ids = torch.full((len(rows), width), pad_token_id)
    labels = torch.full((len(rows), width), IGNORED)
    attention_mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        input_ids[i, :length] = torch.tensor(row["input_ids"])
        labels[i, :length] = torch.tensor(row["labels"])
        attention_mask[i, :length] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class GroupedSampler(torch.utils.data.Sampler[int]):
    """Every index once an epoch, so that each run of `step_size` indices has similar lengths and the runs come shuffled.

    The order depends on seed and epoch alone: a resumed training goes on with the very examples that were due.
    (transformers' own grouping goes from long to short again and again, which makes the examples of one style come together.)
    """

    def __init__(self, lengths: Sequence[int], step_size: int, seed: int) -> None:
        self.lengths, self.step_size, self.seed, self.epoch = lengths, step_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self.seed}-{self.epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        steps, pool = [], self.step_size * GROUPED_STEPS
        for start in range(0, len(order), pool):
            group = sorted(order[start : start + pool], key=lambda i: self.lengths[i])
            steps += [group[i : i + self.step_size] for i in range(0, len(group), self.step_size)]
        # A step that is not full can only be filled from its neighbour: it stays last.
        full = [step for step in steps if len(step) == self.step_size]
        rest = [step for step in steps if len(step) < self.step_size]
        rng.shuffle(full)
        return iter([i for step in full + rest for i in step])
