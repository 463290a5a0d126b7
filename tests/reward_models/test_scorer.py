"""Saved models score as trained ones, and nobody's score depends on who else is in the batch."""

import json
from pathlib import Path

import pytest
import torch
from tiny_backbone import make_backbone, make_diff
from transformers import AutoModelForSequenceClassification

from boostapr.credit import units
from boostapr.errors import UserError
from boostapr.patches import parse_patch
from reward_models.encoding import PatchEncoder, save_reward_info
from reward_models.r_line import new_r_line, save_r_line
from reward_models.r_seq import new_r_seq, sequence_scores
from reward_models.scorer import RewardScorer

RESPONSES = [
    make_diff(
        "stats.py", [(n + 1, f"def f{n}(xs):", f"    return xs[{n}]" * (n % 4), "    return sum(xs)")] * (n % 3 + 1)
    ).encode()
    for n in range(9)
] + [b"", b"no diff at all", "é🐛".encode()[:-1]]


def test_scores_do_not_depend_on_the_batch(saved_rewards: tuple[Path, Path]) -> None:
    """Padding, order and company change nothing beyond 1e-5: a rollout's reward is a function of the rollout."""
    alone, together = RewardScorer.load(*saved_rewards, batch_size=1), RewardScorer.load(*saved_rewards, batch_size=64)
    single = [alone.score([r], "edit_line")[0] for r in RESPONSES]
    batch = together.score(RESPONSES, "edit_line")
    assert len({round(s.seq, 4) for s in batch}) > 5, "the fixture's scores should differ"
    for one, other in zip(single, batch, strict=True):
        assert one.seq == pytest.approx(other.seq, abs=1e-5)
        assert one.units == pytest.approx(other.units, abs=1e-5)
    assert together.score(RESPONSES[::-1], "edit_line")[::-1] == pytest.approx(batch)


def test_r_seq_is_an_ordinary_sequence_classifier(saved_rewards: tuple[Path, Path], backbone: Path) -> None:
    """Transformers' own class reads the folder and gives the same scores, with its own way to find the last token."""
    model = AutoModelForSequenceClassification.from_pretrained(saved_rewards[0])
    config = json.loads((saved_rewards[0] / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForSequenceClassification"]
    assert config["problem_type"] == "regression", "a server must not put a sigmoid over the score"
    encoder = PatchEncoder(saved_rewards[0])
    ids = encoder.pad(encoder.encode(RESPONSES))
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, attention_mask=(ids != encoder.pad_id).long()).logits[:, 0]
    scores = RewardScorer.load(saved_rewards[0], None, batch_size=4).score(RESPONSES, "edit_line")
    assert [s.seq for s in scores] == pytest.approx(logits.tolist(), abs=1e-5)
    fresh = new_r_seq(backbone, encoder, 1.0, seed=1).eval()
    assert sequence_scores(fresh, encoder, encoder.encode(RESPONSES), 4) == pytest.approx(
        [s.seq for s in scores], abs=1e-6
    )


@pytest.mark.parametrize("granularity", ["edit_line", "hunk", "statement", "token_uniform"])
def test_one_score_per_unit_in_order(saved_rewards: tuple[Path, Path], granularity: str) -> None:
    """The credit code zips scores with units: one too few or many would credit the wrong lines."""
    scorer = RewardScorer.load(*saved_rewards, batch_size=8)
    for response, score in zip(RESPONSES, scorer.score(RESPONSES, granularity), strict=True):
        assert len(score.units) == len(units(parse_patch(response), granularity))
    assert [len(s.units) for s in scorer.score(RESPONSES, "edit_line")][-3:] == [0, 0, 0]


def test_a_unit_score_is_the_head_over_the_mean_of_its_tokens(saved_rewards: tuple[Path, Path]) -> None:
    """B.2, spelled out for one patch with two spans."""
    from reward_models.r_line import load_r_line, place_units

    model, encoder, _ = load_r_line(saved_rewards[1], torch.device("cpu"))
    patch = parse_patch(RESPONSES[1])
    (ids,) = encoder.encode([patch.response])
    unit_of_token, _ = place_units(encoder, ids, units(patch, "edit_line"))
    with torch.no_grad():
        hidden = model.backbone(input_ids=torch.tensor([ids])).last_hidden_state[0]
        expected = [
            model.head(hidden[[i for i, u in enumerate(unit_of_token) if u == unit]].mean(dim=0)).item()
            for unit in range(len(patch.spans))
        ]
    assert len(expected) == 2
    assert RewardScorer.load(*saved_rewards, batch_size=8).score([RESPONSES[1]], "edit_line")[0].units == pytest.approx(
        expected, abs=1e-5
    )


def test_text_and_bytes_score_alike(saved_rewards: tuple[Path, Path]) -> None:
    scorer = RewardScorer.load(*saved_rewards, batch_size=8)
    assert scorer.score([RESPONSES[0].decode()], "edit_line") == scorer.score([RESPONSES[0]], "edit_line")


def test_without_r_line_there_are_no_unit_scores(saved_rewards: tuple[Path, Path]) -> None:
    scores = RewardScorer.load(saved_rewards[0], None, batch_size=8).score(RESPONSES, "edit_line")
    assert all(score.units == [] for score in scores)


def test_a_response_beyond_max_length_keeps_a_score_but_no_units(
    saved_rewards: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A runaway rollout must neither stop PPO nor get credit on lines that the model never saw."""
    long = RESPONSES[0] + b"+x\n" * 400
    score = RewardScorer.load(*saved_rewards, batch_size=8).score([long], "edit_line")[0]
    assert score.units == []
    assert abs(score.seq) < 1e3
    assert "longer than 256 tokens" in caplog.text


def test_r_line_may_have_another_tokenizer_than_r_seq(saved_rewards: tuple[Path, Path], tmp_path: Path) -> None:
    """Both meet in the bytes of the response; each is scored as if it were alone."""
    other = make_backbone(tmp_path / "other", vocab_size=280, seed=5)
    encoder = PatchEncoder(other)
    save_r_line(new_r_line(other, 8, 1.0, seed=2), tmp_path / "r_line")
    save_reward_info(other, encoder, tmp_path / "r_line", {"kind": "R_line", "input_mode": "patch", "max_length": 512})
    assert encoder.encode(RESPONSES) != PatchEncoder(saved_rewards[0]).encode(RESPONSES)
    mixed = RewardScorer.load(saved_rewards[0], tmp_path / "r_line", batch_size=8).score(RESPONSES, "edit_line")
    same = RewardScorer.load(*saved_rewards, batch_size=8).score(RESPONSES, "edit_line")
    assert [s.seq for s in mixed] == [s.seq for s in same]
    assert [len(s.units) for s in mixed] == [len(s.units) for s in same]
    assert mixed[1].units != same[1].units


def test_an_untrained_folder_is_named_with_the_remedy(backbone: Path) -> None:
    with pytest.raises(UserError, match=r"no trained R_seq here.*boostapr reward"):
        RewardScorer.load(backbone, None, batch_size=8)
