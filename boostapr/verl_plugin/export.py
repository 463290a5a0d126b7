"""From verl's last checkpoint to a Hugging Face folder that every later stage can load.

verl's own merger rounds every weight to bfloat16 and leaves LoRA beside the model; here weights keep the type they were
trained in, and adapters are merged.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from boostapr.errors import UserError
from boostapr.tokens import FILE as TOKENS_FILE


class ExportError(UserError):
    """The checkpoint does not hold what is needed."""


def export_policy(checkpoint: Path, policy_dir: Path, target: Path) -> None:
    """Write the policy of `checkpoint` (a `global_step_N` folder) as a HF model to `target`.

    policy_dir: the model that training started from; its configuration, tokenizer and token fingerprint are kept.

    Raises:
        ExportError: shards are missing, or weights do not fit the model.
    """
    from transformers import AutoModelForCausalLM

    actor = checkpoint / "actor"
    state = merge_lora(load_shards(actor), _lora_scale(actor))
    model = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=next(iter(state.values())).dtype)
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise ExportError(
            f"{actor} does not fit the model in {policy_dir}: missing {sorted(set(missing) - tied)[:3]}, unexpected {unexpected[:3]}."
        )
    model.tie_weights()
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    model.save_pretrained(scratch)
    for name in [TOKENS_FILE, *_tokenizer_files()]:
        if (policy_dir / name).is_file():
            shutil.copy2(policy_dir / name, scratch / name)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)


def load_shards(actor: Path) -> dict[str, torch.Tensor]:
    """Full tensors from the FSDP shards of all ranks (`model_world_size_W_rank_R.pt`)."""
    from torch.distributed.tensor import DTensor, Shard

    path = actor / "fsdp_config.json"
    if not path.is_file():
        raise ExportError(f"{path} is missing: not a checkpoint of verl's FSDP engine.")
    size = int(json.loads(path.read_text())["world_size"])
    shards = []
    for rank in range(size):
        shard = actor / f"model_world_size_{size}_rank_{rank}.pt"
        if not shard.is_file():
            raise ExportError(f"{shard} is missing: the checkpoint needs the files of all {size} ranks in one folder.")
        # verl pickles DTensors, which torch's restricted loader refuses; the file is the run's own.
        shards.append(torch.load(shard, map_location="cpu", weights_only=False))
    state: dict[str, torch.Tensor] = {}
    for key, first in shards[0].items():
        parts = [shard[key] for shard in shards]
        if isinstance(first, DTensor):
            placement = first.placements[-1]
            local = [part._local_tensor for part in parts]
            state[key] = torch.cat(local, dim=placement.dim) if isinstance(placement, Shard) else local[0]
        else:
            state[key] = first
    return state


def merge_lora(state: dict[str, torch.Tensor], scale: float | None) -> dict[str, torch.Tensor]:
    """Plain weights from a PEFT state: W + scale * B @ A. A state without adapters is returned as it is."""
    if scale is None:
        return state
    adapters: dict[str, dict[str, torch.Tensor]] = {}
    plain: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("base_model.model.")
        if ".lora_A." in name or ".lora_B." in name:
            module, _, rest = name.partition(".lora_")
            adapters.setdefault(module, {})[rest[0]] = value
        else:
            plain[name.replace(".base_layer.", ".")] = value
    for module, pair in adapters.items():
        weight = plain[f"{module}.weight"]
        delta = scale * (pair["B"].double() @ pair["A"].double())
        plain[f"{module}.weight"] = (weight.double() + delta).to(weight.dtype)
    return plain


def _lora_scale(actor: Path) -> float | None:
    path = actor / "lora_train_meta.json"
    if not path.is_file():
        return None
    meta: dict[str, Any] = json.loads(path.read_text())
    return float(meta["lora_alpha"]) / float(meta["r"])


def _tokenizer_files() -> tuple[str, ...]:
    """Copied, not saved anew: saving goes through the class that transformers picks, which may not be training's."""
    return (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "generation_config.json",
    )
