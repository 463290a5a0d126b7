"""A random Qwen2 of 0.3 million parameters with its own tokenizer, and prompts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from boostapr.tokens import Message, encode_prompt, write_fingerprint


def conversation(number: int) -> list[Message]:
    """A prompt that looks a little like a repair."""
    return [{"role": "user", "content": f"--- a/f{number}.py\n+++ b/f{number}.py\n-    return x + {number}\nfix it\n"}]


def patch(number: int) -> str:
    """The answer to `conversation(number)`: two edits, about fifty tokens."""
    return f"--- a/f.py\n+++ b/f.py\n@@ -1,3 +1,3 @@\n-x = {number}\n+x = 1\n y\n-z\n+z = 2\n"


def make_policy(folder: Path, writes_patches: bool = False) -> None:
    """A model folder as the sft stage leaves it; `writes_patches`: trained for some seconds to write one patch."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from stages.base_model import train_bpe

    texts = [conversation(i)[0]["content"] + patch(i) for i in range(200)]
    tokenizer = train_bpe(texts, 384)
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
    model = Qwen2ForCausalLM(config)
    if writes_patches:
        _learn(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_fingerprint(folder, tokenizer, [conversation(i) for i in range(3)])


def _learn(model: Any, tokenizer: Any) -> None:
    """Until the patch comes out almost always: a few numbers to remember."""
    import torch

    prompts = [encode_prompt(tokenizer, conversation(i)) for i in range(16)]
    answers = [[*tokenizer.encode(patch(3)), tokenizer.eos_token_id] for _ in prompts]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(150):
        prompt, answer = prompts[step % 16], answers[step % 16]
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def make_rows(path: Path, source: str, count: int, execute: bool) -> None:
    """A file of prompts for `PromptDataset`."""
    rows = [
        {"instance_id": f"{source}-{i}", "messages": conversation(i), "source": source, "execute": execute}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
