"""Training learns what is there to learn, survives a kill without changing a number, and refuses what cannot work."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_backbone import make_diff
from transformers import TrainerCallback

from boostapr.credit import units
from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from boostapr.patches import parse_patch
from reward_models import r_line, r_seq
from reward_models.data import Candidate, Example, Group, group_by_instance
from reward_models.encoding import PatchEncoder
from reward_models.settings import RLineSettings, RSeqSettings
from reward_models.training import newest_checkpoint

INFO = {"input_mode": "patch", "max_length": 256}


def toy(encoder: PatchEncoder, num_instances: int, seed: int) -> list[Group]:
    """A separable set: a patch succeeds when it adds `sum`, fails when it adds `max`. The second span is never to blame."""
    rng = random.Random(seed)
    examples = []
    for number in range(num_instances):
        for k in range(4):
            good = k % 2 == 0
            line, index = rng.randrange(2, 90), rng.randrange(9)
            edits = [
                (line, f"def f{index}(xs):", f"    return xs[{index}]", f"    return {'sum' if good else 'max'}(xs)")
            ]
            if rng.random() < 0.5:
                edits.append((line + 9, "def g(xs):", "", f"    y = {index}"))
            response = make_diff("stats.py", edits).encode()
            outcome = Outcome(Status.RESOLVED if good else Status.TESTS_FAILED, exit_code=0 if good else 1)
            candidate = Candidate(f"i{number}", k, response, 0.99 if good else 0.2, outcome)
            (ids,) = encoder.encode([response])
            unit_of_token, _ = r_line.place_units(encoder, ids, units(parse_patch(response), "edit_line"))
            labels = (1, 1)[: len(edits)] if good else (-1, 0)[: len(edits)]
            examples.append(Example(candidate, ids, unit_of_token, labels, (1.0, 1.0)[: len(edits)]))
    return group_by_instance(examples)


def train(
    kind: Any, encoder: PatchEncoder, backbone: Path, settings: Any, folder: Path, size: int = 40
) -> dict[str, Any]:
    call = kind.train_r_seq if kind is r_seq else kind.train_r_line
    return call(
        toy(encoder, size, 0), toy(encoder, 12, 1), backbone, encoder, settings, folder / "model", folder, 0, 1, INFO
    )


@pytest.fixture(scope="module")
def encoder(backbone: Path) -> PatchEncoder:
    return PatchEncoder(backbone)


def test_r_seq_learns_a_separable_set(
    encoder: PatchEncoder, backbone: Path, r_seq_settings: RSeqSettings, tmp_path: Path
) -> None:
    """From chance to every pair, on instances that it never saw, and as far as Eq. 4 goes.

    For a pair with r* 0.99 and 0.2 the optimum of 0.5 MSE + 0.79 log(1 + exp(-d)) is 0.2207, at d = 1.41: the preference
    term stretches the gap of 0.79.
    """
    metrics = train(r_seq, encoder, backbone, r_seq_settings, tmp_path)
    assert metrics["pairwise_accuracy"] > 0.95
    assert metrics["roc_auc"] > 0.95
    assert metrics["loss"] == pytest.approx(0.2207, abs=0.01)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any("loss" in row for row in rows) and any("eval_pairwise_accuracy" in row for row in rows)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_r_line_learns_which_span_is_to_blame(
    encoder: PatchEncoder, backbone: Path, r_line_settings: RLineSettings, tmp_path: Path
) -> None:
    """Failing spans fall below passing ones, and below the neutral span of their own patch."""
    metrics = train(r_line, encoder, backbone, r_line_settings, tmp_path)
    assert metrics["pairwise_accuracy"] > 0.95
    assert metrics["within_patch_accuracy"] > 0.9
    assert metrics["top1_hit_rate"] > 0.9


class _Killed(Exception):
    pass


class _KillAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise _Killed


@pytest.mark.parametrize("kind", [r_seq, r_line], ids=["r_seq", "r_line"])
def test_a_killed_run_ends_as_an_uninterrupted_one(
    kind: Any,
    encoder: PatchEncoder,
    backbone: Path,
    r_seq_settings: RSeqSettings,
    r_line_settings: RLineSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed between two checkpoints and started again: the same weights, and no step twice in metrics.jsonl."""
    base = r_seq_settings if kind is r_seq else r_line_settings
    settings = base.model_copy(update={"num_epochs": 2, "checkpoint_steps": 4})
    whole = train(kind, encoder, backbone, settings, tmp_path / "whole", size=20)

    fit = kind.fit

    def fit_and_die(trainer: Any, *rest: Any) -> None:
        trainer.add_callback(_KillAt(7))
        fit(trainer, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "fit", fit_and_die)
        with pytest.raises(_Killed):
            train(kind, encoder, backbone, settings, tmp_path / "killed", size=20)
    assert newest_checkpoint(tmp_path / "killed" / "checkpoints").name == "checkpoint-4"
    resumed = train(kind, encoder, backbone, settings, tmp_path / "killed", size=20)

    assert resumed == pytest.approx(whole)
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = [json.loads(line) for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row["step"] for row in rows if "eval_loss" in row]
    assert evaluated == sorted(set(evaluated))


def test_a_checkpoint_cut_while_it_was_written_is_passed_over(tmp_path: Path) -> None:
    """A kill during saving leaves a folder without a readable trainer_state.json: the one before it counts."""
    for step, state in ((5, "{}"), (10, '{"global_st'), (15, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path).name == "checkpoint-5"
    shutil.rmtree(tmp_path / "checkpoint-5")
    assert newest_checkpoint(tmp_path) is None


def test_accumulated_micro_batches_train_like_one_batch(
    encoder: PatchEncoder, backbone: Path, r_seq_settings: RSeqSettings, tmp_path: Path
) -> None:
    """A cluster's small micro-batches must give the gradient of the whole batch, not its sum: pairs lie within instances, and
    every instance here has the same number of them."""
    results = []
    for micro in (16, 4):
        settings = r_seq_settings.model_copy(
            update={"micro_batch_size": micro, "num_epochs": 1, "checkpoint_steps": 99}
        )
        folder = tmp_path / str(micro)
        train(r_seq, encoder, backbone, settings, folder, size=16)
        results.append(load_file(folder / "model" / "model.safetensors")["score.weight"])
    assert torch.allclose(results[0], results[1], atol=1e-4)


def test_the_best_checkpoint_is_kept(
    encoder: PatchEncoder, backbone: Path, r_seq_settings: RSeqSettings, tmp_path: Path
) -> None:
    """The held-out loss decides, so that a model that went astray at the end is not what PPO gets."""
    settings = r_seq_settings.model_copy(update={"num_epochs": 4, "checkpoint_steps": 5, "learning_rate": 3e-2})
    metrics = train(r_seq, encoder, backbone, settings, tmp_path, size=16)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [row["eval_loss"] for row in rows if "eval_loss" in row]
    assert len(losses) >= 3
    assert metrics["loss"] == pytest.approx(min(losses), abs=1e-5)


def test_gradient_checkpointing_changes_memory_not_results(
    encoder: PatchEncoder, backbone: Path, r_line_settings: RLineSettings, tmp_path: Path
) -> None:
    weights = []
    for flag in (False, True):
        settings = r_line_settings.model_copy(update={"num_epochs": 1, "gradient_checkpointing": flag})
        train(r_line, encoder, backbone, settings, tmp_path / str(flag), size=8)
        weights.append(load_file(tmp_path / str(flag) / "model" / "head.safetensors")["0.weight"])
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


def test_a_micro_batch_must_hold_a_whole_instance(
    encoder: PatchEncoder, backbone: Path, r_seq_settings: RSeqSettings, tmp_path: Path
) -> None:
    """Otherwise Eq. 4 would lose its preference term without a word."""
    settings = r_seq_settings.model_copy(update={"micro_batch_size": 2})
    with pytest.raises(UserError, match="micro_batch_size=2 cannot hold the 4 candidates"):
        train(r_seq, encoder, backbone, settings, tmp_path, size=4)


def test_candidates_that_all_earn_the_same_are_refused(
    encoder: PatchEncoder, backbone: Path, r_seq_settings: RSeqSettings, tmp_path: Path
) -> None:
    groups = [[e for e in group if e.candidate.outcome.resolved] for group in toy(encoder, 4, 0)]
    with pytest.raises(UserError, match="nothing to prefer"):
        r_seq.train_r_seq(groups, groups, backbone, encoder, r_seq_settings, tmp_path / "m", tmp_path, 0, 1, INFO)


def test_r_line_without_passing_spans_is_refused(
    encoder: PatchEncoder, backbone: Path, r_line_settings: RLineSettings, tmp_path: Path
) -> None:
    groups = [[e for e in group if not e.candidate.outcome.resolved] for group in toy(encoder, 4, 0)]
    with pytest.raises(UserError, match="no passing span"):
        r_line.train_r_line(groups, groups, backbone, encoder, r_line_settings, tmp_path / "m", tmp_path, 0, 1, INFO)


@pytest.mark.parametrize("kind", [r_seq, r_line], ids=["r_seq", "r_line"])
def test_a_batch_gives_every_candidate_its_own_scores(
    kind: Any, encoder: PatchEncoder, backbone: Path, saved_rewards: tuple[Path, Path]
) -> None:
    """Repeated candidates go through the model once: scores must still stand in the order of candidates and spans."""
    groups = toy(encoder, 3, 0)
    groups = [[*groups[0], groups[0][1]], groups[1], [groups[2][3], *groups[2]]]
    examples = [example for group in groups for example in group]
    batch = kind.collate(encoder, groups)
    assert batch["input_ids"].shape[0] < len(examples)
    trainer = kind.RSeqTrainer if kind is r_seq else kind.RLineTrainer
    self = SimpleNamespace(lambda_reg=0.5)
    if kind is r_seq:
        model, _, _ = r_seq.load_r_seq(saved_rewards[0], torch.device("cpu"))
        expected = r_seq.sequence_scores(model, encoder, [e.ids for e in examples], 2)
    else:
        model, _, _ = r_line.load_r_line(saved_rewards[1], torch.device("cpu"))
        counts = [len(e.labels) for e in examples]
        nested = r_line.unit_scores(model, encoder, [e.ids for e in examples], [e.units for e in examples], counts, 2)
        expected = [score for own in nested for score in own]
        assert batch["labels"].tolist() == [label for e in examples for label in e.labels]
    loss, scores = trainer.batch_loss(self, model, batch)
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 3 and torch.isfinite(loss)
