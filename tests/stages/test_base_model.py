"""`make base-model`: a run that goes on behind a finished phase ends where an uninterrupted one does."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError
from safetensors.torch import load_file

from stages import base_model
from stages.base_model import CONFIG, STATE, BaseModelSettings, Phase, run

PHASES = [
    {"steps": 2, "review_share": 0.0, "scrambled_share": 1.0, "fix_share": 0.0, "learning_rate": 1e-3},
    {"steps": 3, "review_share": 0.4, "scrambled_share": 0.2, "fix_share": 0.9, "learning_rate": 1e-3},
]


def settings(output_dir: Path, phases: list[dict[str, float]]) -> BaseModelSettings:
    small = {
        "output_dir": str(output_dir),
        "phases": phases,
        "tokenizer_examples": 30,
        "vocab_size": 400,
        "hidden_size": 128,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "batch_size": 2,
        "review_batch_size": 2,
        "eval_every": 100,
        "eval_instances": 2,
        "num_threads": 1,
    }
    return BaseModelSettings.model_validate(OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(CONFIG), small)))


def test_phases_go_on_where_the_last_one_ended_and_give_the_model_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_model, "NUM_REVIEWS", 2)
    run(settings(tmp_path / "whole", PHASES))
    run(settings(tmp_path / "parts", PHASES[:1]))
    before = (tmp_path / "parts" / STATE.format(1)).read_bytes()
    run(settings(tmp_path / "parts", PHASES))
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all((whole[key] == parts[key]).all() for key in whole)
    assert (tmp_path / "parts" / STATE.format(1)).read_bytes() == before  # the first phase was not trained again
    assert any((whole[key] != value).any() for key, value in first_phase(tmp_path).items())


def first_phase(folder: Path) -> dict[str, object]:
    run(settings(folder / "first", PHASES[:1]))
    return dict(load_file(folder / "first" / "model.safetensors"))


def test_shares_of_a_phase_cannot_exceed_one() -> None:
    with pytest.raises(ValidationError, match="add up to more than 1"):
        Phase.model_validate(PHASES[1] | {"review_share": 0.9})
