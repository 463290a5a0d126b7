"""Bytes in, the same bytes out: whatever the response holds, spans must land on the right tokens."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_backbone import make_diff
from transformers import AutoTokenizer

from boostapr.credit import units
from boostapr.errors import UserError
from boostapr.patches import parse_patch
from reward_models.encoding import REWARD_FILE, PatchEncoder, load_reward_info, save_reward_info
from reward_models.r_line import place_units


@pytest.fixture(scope="module")
def encoder(backbone: Path) -> PatchEncoder:
    return PatchEncoder(backbone)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_every_text_survives_encoding(encoder: PatchEncoder, text: str) -> None:
    """No normaliser, no special token, no merge may change what a token's bytes say."""
    raw = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    (ids,) = encoder.encode([raw])
    assert b"".join(encoder.token_bytes(ids)) == raw
    assert ids[-1] == encoder.end_id


@settings(max_examples=200, deadline=None)
@given(raw=st.binary())
def test_invalid_utf8_keeps_its_length(encoder: PatchEncoder, raw: bytes) -> None:
    """A response cut in the middle of a character must not move the spans behind it."""
    (ids,) = encoder.encode([raw])
    assert len(b"".join(encoder.token_bytes(ids))) == len(raw)


def test_a_special_token_spelled_out_in_a_patch_is_text(encoder: PatchEncoder) -> None:
    """A patch that edits chat templates must neither end early nor smuggle in control tokens."""
    (ids,) = encoder.encode([b"+x = '<|im_end|>'\n"])
    assert ids.count(encoder.end_id) == 1 and ids[-1] == encoder.end_id


def test_an_empty_response_is_one_end_token(encoder: PatchEncoder) -> None:
    assert encoder.encode([b""]) == [[encoder.end_id]]


def test_the_end_token_differs_from_padding(backbone: Path, tmp_path: Path) -> None:
    """Many base models pad with their end token; the classifier head would then look at the wrong token."""
    shutil.copytree(backbone, tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "m")
    encoder = PatchEncoder(tmp_path / "m")
    assert encoder.pad_id != encoder.end_id


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path)):
        PatchEncoder(tmp_path)


def test_another_tokenization_than_in_training_is_refused(
    backbone: Path, tmp_path: Path, encoder: PatchEncoder
) -> None:
    """A library update that splits text differently would spoil every score without a sign."""
    save_reward_info(backbone, encoder, tmp_path, {"kind": "R_seq", "max_length": 64})
    info, _ = load_reward_info(tmp_path, "R_seq")
    assert info["max_length"] == 64
    stored = json.loads((tmp_path / REWARD_FILE).read_text())
    stored["probe_ids"][0] += 1
    (tmp_path / REWARD_FILE).write_text(json.dumps(stored))
    with pytest.raises(UserError, match="splits text otherwise"):
        load_reward_info(tmp_path, "R_seq")
    with pytest.raises(UserError, match="not R_line"):
        load_reward_info(tmp_path, "R_line")


def test_span_tokens_hold_the_bytes_of_the_span(encoder: PatchEncoder) -> None:
    """With a tokenizer whose tokens do not respect lines, every span still gets the tokens that are mostly its own."""
    diff = make_diff("a.py", [(1, "def f():", "    return 'é🐛'", "    return 1"), (9, "def g():", "", "    x = 2")])
    patch = parse_patch(diff.encode())
    (ids,) = encoder.encode([patch.response])
    unit_of_token, scored_as = place_units(encoder, ids, units(patch, "edit_line"))
    tokens = encoder.token_bytes(ids)
    assert scored_as == [0, 1]
    for number, span in enumerate(patch.spans):
        own = b"".join(t for t, unit in zip(tokens, unit_of_token, strict=True) if unit == number)
        text = patch.response[span.start : span.end]
        assert own.strip() == text.strip()


def test_a_unit_inside_one_token_of_a_neighbour_takes_its_score(encoder: PatchEncoder) -> None:
    """Tokens belong to one unit only; the other one must still have a score, not a made-up zero."""
    from boostapr.credit import Unit

    raw = b"return sum"
    (ids,) = encoder.encode([raw])
    tokens = encoder.token_bytes(ids)
    size = len(tokens[0])
    assert size > 2, "the fixture's tokenizer should merge 'return'"
    own = [Unit(ranges=((0, 1),), spans=(0,)), Unit(ranges=((1, size),), spans=(1,))]
    unit_of_token, scored_as = place_units(encoder, ids, own)
    assert unit_of_token[0] == 1
    assert scored_as == [1, 1]
