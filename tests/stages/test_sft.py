"""Stage I training: what is learned (response and end token, never the prompt), what is dropped, and resuming."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from boostapr.errors import UserError
from boostapr.runs import StageRun
from boostapr.tokens import TokenMismatchError, check_fingerprint, read_fingerprint
from envs.tasks import BugInstance
from stages import sft
from stages.checkpoints import last_checkpoint, replace_folder
from stages.settings import SFTSettings
from stages.sft_data import IGNORED, GroupedSampler, collate, make_examples, split_by_instance

OpenStage = Callable[[str], StageRun]


def demonstrations(bugs: list[BugInstance]) -> list[dict[str, Any]]:
    return [
        {"instance_id": b.instance_id, "attempt": 0, "trace": "Bug Analysis: é wrong.\n\n", "patch": b.patch}
        for b in bugs
    ]


def by_id(bugs: list[BugInstance]) -> dict[str, BugInstance]:
    return {bug.instance_id: bug for bug in bugs}


def change(settings: SFTSettings, **values: Any) -> SFTSettings:
    return SFTSettings.model_validate(settings.model_dump() | values)


def test_prompt_is_masked_and_the_end_token_is_learned(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """Eq. 2: labels are -100 on exactly the prompt; the response text and then eos carry the loss, byte for byte."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    examples, _ = make_examples(demonstrations(bugs), by_id(bugs), tokenizer, sft_settings, seed=0)
    assert {e.style for e in examples} == {"patch", "trace"} and len(examples) == 2 * len(bugs)
    for example in examples:
        row = example.features()
        learned = [label for label in row["labels"] if label != IGNORED]
        prompt = tokenizer.decode(row["input_ids"][: example.num_prompt])
        assert row["labels"][: example.num_prompt] == [IGNORED] * example.num_prompt
        assert prompt.endswith("<|im_start|>assistant\n")
        assert learned[-1] == tokenizer.eos_token_id
        bug = by_id(bugs)[example.instance_id]
        trace = "Bug Analysis: é wrong.\n\n" if example.style == "trace" else ""
        assert tokenizer.decode(learned[:-1], clean_up_tokenization_spaces=False) == trace + bug.patch


def test_padding_gives_no_loss(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """The loss of a padded batch is that of its rows: padding must neither be attended to nor learned."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    model = AutoModelForCausalLM.from_pretrained(sft_settings.model)
    examples, _ = make_examples(demonstrations(bugs), by_id(bugs), tokenizer, sft_settings, seed=0)
    rows = [e.features() for e in sorted(examples, key=lambda e: len(e.input_ids))]
    shortest, longest = rows[0], rows[-1]
    assert len(shortest["input_ids"]) < len(longest["input_ids"])
    batch = collate([shortest, longest], tokenizer.pad_token_id)
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        alone = model(**collate([shortest], tokenizer.pad_token_id)).loss
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], batch["labels"][0, 1:], ignore_index=IGNORED)
    assert loss.item() == pytest.approx(alone.item(), abs=1e-5)


def test_long_examples_are_dropped_whole_and_listed(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """Section 3.1: an example over the limit is left out, never cut; the list says which and how long."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    every, none = make_examples(demonstrations(bugs), by_id(bugs), tokenizer, sft_settings, seed=0)
    assert none == []
    lengths = sorted(len(e.input_ids) for e in every)
    limit = lengths[len(lengths) // 2]
    kept, dropped = make_examples(
        demonstrations(bugs), by_id(bugs), tokenizer, change(sft_settings, max_length=limit), seed=0
    )
    assert [len(e.input_ids) for e in kept] == [len(e.input_ids) for e in every if len(e.input_ids) <= limit]
    assert sorted(row["num_tokens"] for row in dropped) == [n for n in lengths if n > limit]


def test_style_rates(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """conf sets how many examples of each style a demonstration gives; a fraction is a choice by seed, not by order."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    many = [row | {"attempt": k} for k in range(40) for row in demonstrations(bugs)]
    settings = change(sft_settings, patch_examples=2.0, trace_examples=0.25)
    examples, _ = make_examples(many, by_id(bugs), tokenizer, settings, seed=0)
    traces = sum(e.style == "trace" for e in examples)
    assert sum(e.style == "patch" for e in examples) == 2 * len(many)
    assert 0.15 * len(many) < traces < 0.35 * len(many)
    again, _ = make_examples(random.Random(1).sample(many, len(many)), by_id(bugs), tokenizer, settings, seed=0)
    assert sum(e.style == "trace" for e in again) == traces


def test_unknown_instance_is_named(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """Demonstrations of another split must not be trained on with the wrong prompts."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    with pytest.raises(UserError, match=bugs[3].instance_id):
        make_examples(demonstrations(bugs), by_id(bugs[:3]), tokenizer, sft_settings, seed=0)


def test_validation_shares_no_instance_with_training(bugs: list[BugInstance], sft_settings: SFTSettings) -> None:
    """A held-out loss over bugs that were trained on would say nothing."""
    tokenizer = AutoTokenizer.from_pretrained(sft_settings.model)
    examples, _ = make_examples(demonstrations(bugs), by_id(bugs), tokenizer, sft_settings, seed=0)
    train, validation = split_by_instance(examples, 0.5, seed=3)
    assert train and validation and len(train) + len(validation) == len(examples)
    assert not {e.instance_id for e in train} & {e.instance_id for e in validation}


def test_sampler_groups_by_length_and_covers_everything() -> None:
    """Batches hold similar lengths (little padding), come in no order of length, and no example is lost or repeated."""
    lengths = [random.Random(i).randrange(10, 500) for i in range(301)]
    sampler = GroupedSampler(lengths, 8, seed=1)
    order = list(sampler)
    assert sorted(order) == list(range(301)) and order == list(sampler)
    steps = [[lengths[i] for i in order[k : k + 8]] for k in range(0, 296, 8)]
    spread = sum(max(step) - min(step) for step in steps) / len(steps)
    assert spread < 60
    means = [sum(step) / 8 for step in steps]
    assert means != sorted(means) and means != sorted(means, reverse=True)
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_training_learns_and_exports(bugs: list[BugInstance], sft_settings: SFTSettings, open_stage: OpenStage) -> None:
    """The loss falls, and the exported folder holds the trained weights with the token ids of training."""
    stage = open_stage("sft")
    sft.run(change(sft_settings, num_epochs=8), demonstrations(bugs), by_id(bugs), 0, stage)
    rows = [json.loads(line) for line in (stage.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 1
    model = stage.folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    check_fingerprint(read_fingerprint(model), tokenizer, "the test")
    trained, base = (
        AutoModelForCausalLM.from_pretrained(model),
        AutoModelForCausalLM.from_pretrained(sft_settings.model),
    )
    assert not torch.equal(trained.lm_head.weight, base.lm_head.weight)
    assert (stage.folder / "done.json").exists()


def test_resume_gives_the_same_model(
    bugs: list[BugInstance], sft_settings: SFTSettings, open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a checkpoint, with a half-written later one left behind, training ends in the very same weights."""
    sft.run(sft_settings, demonstrations(bugs), by_id(bugs), 0, open_stage("whole"))

    class Killed(BaseException):
        pass

    def die(self: sft.LogCallback, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.metrics.log(state.global_step, {"loss": 1.0})
        if state.global_step == 5:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(sft.LogCallback, "on_log", die)
        sft.run(sft_settings, demonstrations(bugs), by_id(bugs), 0, open_stage("killed"))
    stage = open_stage("killed")
    torn = stage.folder / "checkpoints" / "checkpoint-4"
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"global_st')
    sft.run(sft_settings, demonstrations(bugs), by_id(bugs), 0, stage)

    weights = [
        AutoModelForCausalLM.from_pretrained(stage.folder.parent / name / "model").state_dict()
        for name in ("whole", "killed")
    ]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    steps = [json.loads(line)["step"] for line in (stage.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and len([s for s in steps if s == 4]) == 1 and not torn.exists()


def test_lora_is_merged_at_export(bugs: list[BugInstance], sft_settings: SFTSettings, open_stage: OpenStage) -> None:
    """With adapters on, the exported folder is an ordinary model: the next stage need not know about adapters."""
    lora = {"rank": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
    stage = open_stage("sft")
    sft.run(change(sft_settings, lora=lora), demonstrations(bugs), by_id(bugs), 0, stage)
    trained = AutoModelForCausalLM.from_pretrained(stage.folder / "model").state_dict()
    base = AutoModelForCausalLM.from_pretrained(sft_settings.model).state_dict()
    assert trained.keys() == base.keys()
    changed = {name for name in base if not torch.equal(base[name], trained[name])}
    assert any("q_proj" in name for name in changed) and not any("embed" in name or "norm" in name for name in changed)


def test_export_refuses_changed_tokenizer(bugs: list[BugInstance], sft_settings: SFTSettings, tmp_path: Path) -> None:
    """A base whose tokenizer files give other ids than it was trained on is found before training."""
    import shutil

    folder = tmp_path / "base"
    shutil.copytree(sft_settings.model, folder)
    record = json.loads((folder / "boostapr_tokens.json").read_text())
    record["prompts"][1]["ids"][7] += 1
    (folder / "boostapr_tokens.json").write_text(json.dumps(record))
    with pytest.raises(TokenMismatchError, match=r"prompt 1 .* position 7"):
        sft.load(change(sft_settings, model=str(folder)))


def test_messages_of_a_bad_base(sft_settings: SFTSettings, tmp_path: Path) -> None:
    """A missing model and a context that is too short are named with the key to change."""
    with pytest.raises(UserError, match=r"sft\.model"):
        sft.load(change(sft_settings, model=str(tmp_path / "nothing")))
    with pytest.raises(UserError, match=r"sft\.max_length.*4096.*1024"):
        sft.load(change(sft_settings, max_length=4096))


def test_replace_folder_keeps_the_old_one_on_failure(tmp_path: Path) -> None:
    """A model folder is whole or absent, never half-written."""
    target = tmp_path / "model"
    with replace_folder(target) as scratch:
        (scratch / "a").write_text("old")
    with pytest.raises(RuntimeError), replace_folder(target) as scratch:
        (scratch / "a").write_text("new")
        raise RuntimeError
    assert (target / "a").read_text() == "old"


def test_last_checkpoint_of_nothing(tmp_path: Path) -> None:
    """A first start has no checkpoint."""
    assert last_checkpoint(tmp_path / "none") is None
