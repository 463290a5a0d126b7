"""The bytes that tokens stand for, without decoding: byte-level BPE, SentencePiece with byte fallback, tiktoken.

Decoding and re-encoding loses what a token is (a lone byte of a character decodes to U+FFFD), so the vocabulary's own
spelling of each token is turned into bytes instead.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_META = "\u2581"  # SentencePiece's space
_TABLES: WeakKeyDictionary[Any, TokenTable] = WeakKeyDictionary()


class UnknownTokenizer(ValueError):
    """The tokenizer's way to spell bytes is not known, so its tokens cannot be laid over a response."""


def byte_alphabet() -> dict[str, int]:
    """GPT-2's table of printable characters for the 256 bytes."""
    codes = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(code): code for code in codes}
    for code in range(256):
        if code not in codes:
            table[chr(256 + len(table) - len(codes))] = code
    return table


_ALPHABET = byte_alphabet()


class TokenTable:
    """Bytes of every token id of one tokenizer, filled in as ids are seen. Special tokens have none."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell
        self._known: dict[int, bytes] = {}

    def __call__(self, ids: Sequence[int]) -> list[bytes]:
        known = self._known
        try:
            return [known[i] for i in ids]
        except KeyError:
            for i in ids:
                if i not in known:
                    known[int(i)] = self._spell(int(i))
            return [known[i] for i in ids]


def token_bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The bytes of each token; b"" for special tokens and ids outside the vocabulary.

    tokenizer: a Hugging Face tokenizer (byte-level BPE or SentencePiece with byte fallback), a tiktoken Encoding, a
    SentencePieceProcessor, or one of mistral_common's. SentencePiece spells a space before the first word that is not in
    the text; `boostapr.credit.fit` sees to that.

    Raises:
        UnknownTokenizer: no rule for this kind of vocabulary.
    """
    try:
        table = _TABLES.get(tokenizer)
    except TypeError:
        table = None
    if table is None:
        table = TokenTable(_speller(tokenizer))
        with contextlib.suppress(TypeError):  # not weakly referable: the table is built anew each time
            _TABLES[tokenizer] = table
    return table(list(ids))


def _speller(tokenizer: Any) -> Callable[[int], bytes]:
    if hasattr(tokenizer, "decode_single_token_bytes"):
        return _tiktoken(tokenizer)
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return _hugging_face(tokenizer)
    if hasattr(tokenizer, "id_to_byte_piece"):
        return _mistral(tokenizer)
    if hasattr(tokenizer, "id_to_piece") and hasattr(tokenizer, "is_control"):
        return _sentencepiece(tokenizer)
    raise UnknownTokenizer(
        f"cannot read token bytes of a {type(tokenizer).__name__}: it is no Hugging Face tokenizer, tiktoken Encoding, SentencePieceProcessor or tokenizer of mistral_common"
    )


def _tiktoken(encoding: Any) -> Callable[[int], bytes]:
    special = {encoding.encode_single_token(name) for name in encoding.special_tokens_set}

    def spell(token: int) -> bytes:
        try:
            return b"" if token in special else bytes(encoding.decode_single_token_bytes(token))
        except KeyError:
            return b""

    return spell


def _mistral(tokenizer: Any) -> Callable[[int], bytes]:
    """mistral_common: tekken vocabularies hold bytes, the older ones wrap SentencePiece."""
    model = getattr(tokenizer, "_model", None)
    if hasattr(model, "id_to_piece"):
        return _sentencepiece(model)
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    return lambda token: bytes(tokenizer.id_to_byte_piece(token, SpecialTokenPolicy.IGNORE))


def _sentencepiece(model: Any) -> Callable[[int], bytes]:
    def spell(token: int) -> bytes:
        if token >= model.get_piece_size() or model.is_control(token) or model.is_unknown(token):
            return b""
        return _piece_bytes(model.id_to_piece(token))

    return spell


def _piece_bytes(piece: str) -> bytes:
    """SentencePiece's spelling of a token: `<0x0A>` is one byte, the low line is a space."""
    byte = _BYTE_TOKEN.match(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_META, " ").encode("utf-8", "surrogatepass")


def _hugging_face(tokenizer: Any) -> Callable[[int], bytes]:
    special = set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special |= {token for token, value in added.items() if value.special}
    byte_level = _is_byte_level(tokenizer)

    def spell(token: int) -> bytes:
        if token in special:
            return b""
        piece = tokenizer.convert_ids_to_tokens(token)
        if not piece:
            return b""
        if isinstance(piece, bytes):
            return piece
        if token in added:
            return str(piece).encode("utf-8", "surrogatepass")
        if byte_level:
            return bytes(_ALPHABET[character] for character in piece)
        return _piece_bytes(piece)

    return spell


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the vocabulary is spelt in GPT-2's byte alphabet (True) or as text with `<0xNN>` (False)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        decoder = json.loads(backend.to_str()).get("decoder") or {}
        kinds = {part.get("type") for part in [decoder, *decoder.get("decoders", ())]}
        if "ByteLevel" in kinds:
            return True
        if "ByteFallback" in kinds or "Metaspace" in kinds:
            return False
    elif hasattr(tokenizer, "byte_decoder"):
        return True
    elif hasattr(tokenizer, "sp_model"):
        return False
    raise UnknownTokenizer(
        f"cannot tell how {type(tokenizer).__name__} spells bytes: its decoder is neither ByteLevel nor ByteFallback"
    )
