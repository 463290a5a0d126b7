"""Tokens by bytes, on vocabularies that are in use (issue 3, point 2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers_at_hand import ALL

from boostapr.credit import Unit, UnknownTokenizer, align, fit, token_bytes
from boostapr.patches import parse_patch

ADVERSARIAL = [
    "\U0001f600 \U0001f469\u200d\U0001f4bb flags \U0001f1e9\U0001f1ea",
    "e\u0301 a\u0308\u0323 n\u0303",
    "\u4e2d\u6587\u6ce8\u91ca \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4",
    "\t\tif x:\t# tab",
    "x" * 3000,
    "a\u2028b\x0cc",
    "    \n\n\n+\n-\n",
    "<|not_a_special|> as text",
    "\x00\x01\x7f",
]
DIFF = "--- a/f.py\n+++ b/f.py\n@@ -1,4 +1,5 @@\n ctx\n-{0}\n+{1}\n\n+{2}\n end\n"


def diff_with(*texts: str) -> str:
    return DIFF.format(*(text.replace("\n", " ") for text in texts))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("text", ADVERSARIAL, ids=range(len(ADVERSARIAL)))
def test_token_bytes_spell_the_text(name: str, text: str) -> None:
    """Joined, the bytes of the tokens are the response, whatever is in it."""
    tokenizer, encode = ALL[name]()
    response = diff_with(text, text[::-1], text)
    tokens = token_bytes(tokenizer, encode(response))
    fitted = fit(tokens, response.encode())
    assert fitted is not None and b"".join(fitted) == response.encode()


def owners_by_hand(tokens: list[bytes], units: list[Unit]) -> list[int]:
    """The rule, byte by byte: most bytes shared, ties to the earlier."""
    owner_of_byte = {i: u for u, unit in enumerate(units) for a, b in unit.ranges for i in range(a, b)}
    result, position = [], 0
    for token in tokens:
        shares: dict[int, int] = {}
        for i in range(position, position + len(token)):
            if i in owner_of_byte:
                shares[owner_of_byte[i]] = shares.get(owner_of_byte[i], 0) + 1
        position += len(token)
        result.append(min(shares, key=lambda u: (-shares[u], u)) if shares else -1)
    return result


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.text(max_size=20) | st.sampled_from(ADVERSARIAL), min_size=3, max_size=3), cut=st.integers(0, 60)
)
def test_alignment_on_real_tokenizers(name: str, texts: list[str], cut: int) -> None:
    """Spans land on the tokens that share their bytes, also if the response was cut in the middle of a character."""
    tokenizer, encode = ALL[name]()
    ids = encode(diff_with(*texts).encode("utf-8", "replace").decode())
    tokens = token_bytes(tokenizer, ids[: len(ids) - cut] if cut < len(ids) else ids)
    response = b"".join(tokens)
    patch = parse_patch(response)
    got = align(patch, tokens)
    assert not got.fallback and got.unit_of_token.dtype == np.int32
    assert got.unit_of_token.tolist() == owners_by_hand(
        tokens, [Unit(patch.ranges(i), (i,)) for i in range(len(patch.spans))]
    )


@given(st.data())
def test_alignment_of_any_units_with_any_tokens(data: st.DataObject) -> None:
    """Units of several ranges, tokens over several units, empty tokens: as the rule has it."""
    tokens = data.draw(st.lists(st.binary(max_size=5), max_size=25))
    size = sum(map(len, tokens)) + 3
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=12)))
    pieces = list(zip(cuts[::2], cuts[1::2], strict=False))
    owner = data.draw(st.lists(st.integers(0, 3), min_size=len(pieces), max_size=len(pieces)))
    units = [Unit(tuple(p for p, o in zip(pieces, owner, strict=True) if o == n), ()) for n in range(4)]
    assert align(units, tokens).unit_of_token.tolist() == owners_by_hand(tokens, units)


def test_special_tokens_have_no_bytes_and_no_unit() -> None:
    """An end token inside or after an edit earns nothing."""
    for name in ("qwen", "llama3", "gpt2"):
        tokenizer, encode = ALL[name]()
        special = {"qwen": "<|im_end|>", "llama3": "<|eot_id|>", "gpt2": "<|endoftext|>"}[name]
        ids = encode(diff_with("a", "b", "c") + special)
        tokens = token_bytes(tokenizer, ids)
        assert tokens[-1] == b"" and token_bytes(tokenizer, [10**7]) == [b""]
        assert align(parse_patch(b"".join(tokens)), tokens).unit_of_token[-1] == -1


def test_tokens_that_do_not_spell_the_response_are_a_fallback() -> None:
    """A tokenizer that normalises is noticed, never guessed around."""
    response = diff_with("a", "b", "c").encode()
    got = align(parse_patch(response), [response.upper()])
    assert got.fallback and got.unit_of_token.tolist() == [-1]


def test_an_unknown_kind_of_tokenizer_is_an_error() -> None:
    """Better no training than credit on the wrong tokens."""
    with pytest.raises(UnknownTokenizer, match="object"):
        token_bytes(object(), [1])
