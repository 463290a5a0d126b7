"""The exported policy is the trained one, to the last bit of its type."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_model import make_policy
from transformers import AutoModelForCausalLM

from boostapr.verl_plugin.export import ExportError, export_policy, load_shards


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    make_policy(folder)
    return folder


def _checkpoint(folder: Path, states: list[dict[str, torch.Tensor]], lora: tuple[int, int] | None = None) -> Path:
    actor = folder / "global_step_7" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": len(states)}))
    for rank, state in enumerate(states):
        torch.save(state, actor / f"model_world_size_{len(states)}_rank_{rank}.pt")
    if lora:
        (actor / "lora_train_meta.json").write_text(json.dumps({"r": lora[0], "lora_alpha": lora[1]}))
    return actor.parent


def _perturbed(policy: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_all_parameters(policy: Path, tmp_path: Path) -> None:
    """fp32 stays fp32 (verl's merger would round to bfloat16), and tokenizer files are the originals."""
    trained = _perturbed(policy)
    export_policy(_checkpoint(tmp_path, [trained.state_dict()]), policy, tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, value in trained.state_dict().items():
        assert torch.equal(exported.state_dict()[name], value), name
    for name in ("tokenizer.json", "boostapr_tokens.json"):
        assert (tmp_path / "model" / name).read_bytes() == (policy / name).read_bytes()


def test_adapters_are_merged(policy: Path, tmp_path: Path) -> None:
    """The exported model answers as the model with its adapter did."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.manual_seed(2)
    for name, parameter in lora.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    ids = torch.arange(20)[None]
    expected = lora.eval()(input_ids=ids).logits
    export_policy(_checkpoint(tmp_path, [lora.state_dict()], lora=(4, 8)), policy, tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(exported(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_missing_rank_is_an_error(policy: Path, tmp_path: Path) -> None:
    """Half a model must not be exported as a whole one."""
    state = _perturbed(policy).state_dict()
    checkpoint = _checkpoint(tmp_path, [state, state])
    (checkpoint / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(ExportError, match=r"rank_1.pt is missing.*all 2 ranks"):
        load_shards(checkpoint / "actor")


def test_weights_of_another_model_are_refused(policy: Path, tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, [{"model.layers.99.weight": torch.zeros(1)}])
    with pytest.raises(ExportError, match="does not fit the model"):
        export_policy(checkpoint, policy, tmp_path / "model")
    assert not (tmp_path / "model").exists()
