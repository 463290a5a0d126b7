"""From response bytes to the token ids of a reward backbone, without losing or inventing a byte.

The reward models may use another tokenizer than the policy. Both meet in the bytes of the response: ids here are laid over
byte ranges (design, section 4), never over the policy's ids.
"""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from boostapr.credit import UnknownTokenizer, token_bytes
from boostapr.errors import UserError
from boostapr.files import write_json

REWARD_FILE = "boostapr_reward.json"  # beside a saved reward model: what its scores were trained on
# Letters, digits, indents, a decomposed accent, an emoji, a control character and a special token spelled out.
_PROBE = (
    "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n def f(n):\r\n-\treturn n1\n+    return 'e\u0301é🐛\f' + \"<|im_end|>\"\n"
)


def _keep_length(error: UnicodeError) -> tuple[str, int]:
    """One '?' for every byte that is no UTF-8: the text keeps the length of the response, and byte ranges stay true."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error("boostapr_keep_length", _keep_length)


class PatchEncoder:
    """Encodes patches for one reward backbone: the ids of the patch alone, then one end token that carries the score."""

    def __init__(self, directory: str | Path) -> None:
        """Load the tokenizer of a model folder (or hub name).

        Raises:
            UserError: there is none, it is not lossless on bytes, or it has no two distinct tokens for end and padding.
        """
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{directory}: cannot load a tokenizer ({error}). Name a Hugging Face model folder."
            ) from error
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(f"{directory}: the reward models need a fast tokenizer (tokenizer.json).")
        # "<|im_end|>" inside a patch is text like any other, and no normaliser may rewrite the bytes that spans refer to.
        backend.encode_special_tokens = True
        backend.normalizer = None
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        try:
            lossless = b"".join(self.token_bytes(self.encode([_PROBE.encode()])[0])) == _PROBE.encode()
        except UnknownTokenizer:
            lossless = False
        if not lossless:
            raise UserError(
                f"{directory}: its tokenizer does not give back the bytes it was given, so that spans cannot be found in its "
                "tokens. Use a backbone with a byte-level BPE tokenizer (Qwen2, Llama 3, GPT-2)."
            )
        self.end_id, self.pad_id = self._end_and_pad(directory)

    def encode(self, responses: Sequence[bytes]) -> list[list[int]]:
        """Token ids of each response, end token included, untruncated."""
        texts = [response.decode("utf-8", "boostapr_keep_length") for response in responses]
        end = [self.end_id] if hasattr(self, "end_id") else []
        return [encoding.ids + end for encoding in self._backend.encode_batch(texts, add_special_tokens=False)]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; b"" for special tokens."""
        return token_bytes(self.tokenizer, ids)

    def pad(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Ids of many responses as int64[B, T], padded on the right.

        No attention mask goes with it: in a causal model nothing that counts looks at what stands to its right.
        """
        width = max(len(ids) for ids in sequences)
        return torch.tensor([[*ids, *[self.pad_id] * (width - len(ids))] for ids in sequences], dtype=torch.long)

    def _end_and_pad(self, directory: str | Path) -> tuple[int, int]:
        """The classifier head finds the last token by looking for padding, so the two must differ."""
        end = self.tokenizer.eos_token_id
        pad = self.tokenizer.pad_token_id
        if end is None:
            raise UserError(f"{directory}: the tokenizer has no eos_token; set one in tokenizer_config.json.")
        if pad is None or pad == end:
            others = [i for i in sorted(self.tokenizer.added_tokens_decoder) if i != end]
            if not others:
                raise UserError(f"{directory}: the tokenizer needs a pad_token that is not its eos_token.")
            pad = others[0]
        return int(end), int(pad)


def save_reward_info(backbone: str | Path, encoder: PatchEncoder, directory: Path, info: dict[str, Any]) -> None:
    """Put the backbone's tokenizer, as it was, and a record of how the model was trained beside a saved reward model."""
    AutoTokenizer.from_pretrained(backbone).save_pretrained(directory)
    write_json(directory / REWARD_FILE, info | {"probe_ids": encoder.encode([_PROBE.encode()])[0]})


def load_reward_info(directory: Path, kind: str) -> tuple[dict[str, Any], PatchEncoder]:
    """The record and the tokenizer of a saved reward model.

    Raises:
        UserError: the folder holds no reward model of this kind, or its tokenizer splits text otherwise than in training.
    """
    path = directory / REWARD_FILE
    if not path.is_file():
        raise UserError(f"{directory}: no trained {kind} here ({REWARD_FILE} is missing). Run `boostapr reward` first.")
    info = json.loads(path.read_text())
    if info.get("kind") != kind:
        raise UserError(f"{directory}: this is a saved {info.get('kind')}, not {kind}.")
    encoder = PatchEncoder(directory)
    if encoder.encode([_PROBE.encode()])[0] != info["probe_ids"]:
        raise UserError(
            f"{directory}: its tokenizer splits text otherwise than when {kind} was trained, which would spoil every score. "
            "Install the tested version of transformers (`boostapr doctor`)."
        )
    return info, encoder
