"""A tiny random model, and policies that answer from memory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from boostapr.prompts import repair_messages
from boostapr.tokens import write_fingerprint
from envs.policies import Request, Response
from envs.tasks import BugInstance
from stages.base_model import train_bpe


def make_model(folder: Path, bugs: Sequence[BugInstance]) -> Path:
    """A random Qwen2 of 0.1 million parameters, as a Hugging Face folder with the ids of two prompts."""
    texts = [bug.patch + "".join(bug.files.values()) for bug in bugs]
    tokenizer = train_bpe(texts, 400)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_fingerprint(folder, tokenizer, [repair_messages(bug, "patch", "compact") for bug in bugs[:2]])
    return folder


class MemoryPolicy:
    """Answers with what a function of (instance, number of the answer) gives; counts its openings and requests.

    die_after: the process "is killed" (KeyboardInterrupt) after so many requests.
    """

    def __init__(self, answer: Callable[[BugInstance, int], Response], die_after: int | None = None) -> None:
        self.answer, self.die_after = answer, die_after
        self.asked: list[tuple[str, int]] = []
        self.seeds: list[int] = []

    def open(self, seed: int) -> "MemoryPolicy":
        self.seeds.append(seed)
        return self

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[Request, list[Response]]]:
        for number, request in enumerate(requests):
            if number == self.die_after:
                raise KeyboardInterrupt
            self.asked.append((request.instance.instance_id, request.num_samples))
            yield request, [self.answer(request.instance, k) for k in range(request.num_samples)]

    def __enter__(self) -> "MemoryPolicy":
        return self

    def __exit__(self, *error: object) -> None:
        return None
