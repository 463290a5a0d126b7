"""R_line (section 3.3.3): a causal language model with a head that scores the edit spans of a patch, all in one forward pass.

The backbone reads the whole patch, so a span's hidden states know the edit itself, the context lines before it, the file
path and the place in the patch: they all stand in the diff.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from boostapr.credit import Unit, align
from boostapr.errors import UserError
from reward_models.data import Example, Group, distinct, flatten, group_numbers
from reward_models.encoding import PatchEncoder, load_reward_info, save_reward_info
from reward_models.losses import contrastive_loss
from reward_models.metrics import span_metrics
from reward_models.settings import RLineSettings
from reward_models.training import (
    Batch,
    EvaluateAtTheEnd,
    MetricsCallback,
    Progress,
    RewardTrainer,
    batched,
    fit,
    quiet_loading,
    training_arguments,
)

KIND = "R_line"
HEAD_FILE = "head.safetensors"


class RLine(nn.Module):
    """Backbone, mean over a unit's tokens, then a two-layer MLP with ReLU (appendix B.2)."""

    def __init__(self, backbone: PreTrainedModel, hidden_dim: int, head_init_std: float) -> None:
        super().__init__()
        self.backbone = backbone
        size = backbone.config.get_text_config().hidden_size
        output = nn.Linear(hidden_dim, 1)
        # Scores start close together, so that allocation (Eq. 5) starts even.
        nn.init.normal_(output.weight, std=head_init_std)
        nn.init.zeros_(output.bias)
        self.head = nn.Sequential(nn.Linear(size, hidden_dim), nn.ReLU(), output)

    def forward(self, input_ids: Tensor, unit_of_token: Tensor, num_units: int) -> Tensor:
        """Scores of all units of a batch.

        Args:
            input_ids: int64[B, T], padded on the right.
            unit_of_token: int64[B, T], the unit of each token, numbered through the batch; -1 for tokens outside.
            num_units: U, units in the batch.

        Returns:
            float32[U]. A unit without a token is scored as if its mean were zero.
        """
        hidden = self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state.float()
        inside = unit_of_token >= 0
        unit = unit_of_token[inside]
        sums = hidden.new_zeros(num_units, hidden.shape[-1]).index_add(0, unit, hidden[inside])
        counts = hidden.new_zeros(num_units).index_add(0, unit, torch.ones_like(unit, dtype=hidden.dtype))
        return self.head(sums / counts.clamp(min=1.0)[:, None])[:, 0]

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """Trainer asks for this where `gradient_checkpointing` is set."""
        self.backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs)


def new_r_line(backbone: str | Path, hidden_dim: int, head_init_std: float, seed: int) -> RLine:
    """R_line on a pretrained backbone; the head's output layer starts at N(0, head_init_std^2)."""
    with quiet_loading(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RLine(AutoModel.from_pretrained(backbone, dtype=torch.float32), hidden_dim, head_init_std)


def save_r_line(model: RLine, directory: Path) -> None:
    """The backbone as a Hugging Face folder, the head beside it."""
    model.backbone.save_pretrained(directory)
    save_file({name: value.contiguous() for name, value in model.head.state_dict().items()}, directory / HEAD_FILE)


def load_r_line(directory: Path, device: torch.device) -> tuple[RLine, PatchEncoder, dict[str, Any]]:
    """A trained R_line, ready to score.

    Raises:
        UserError: the folder holds none (see `reward_models.encoding.load_reward_info`).
    """
    info, encoder = load_reward_info(directory, KIND)
    head = load_file(directory / HEAD_FILE)
    backbone = AutoModel.from_pretrained(directory, dtype=torch.float32)
    model = RLine(backbone, hidden_dim=head["0.weight"].shape[0], head_init_std=0.0)
    model.head.load_state_dict(head)
    return model.to(device).eval(), encoder, info


def place_units(encoder: PatchEncoder, ids: Sequence[int], units: Sequence[Unit]) -> tuple[tuple[int, ...], list[int]]:
    """Lay units over the tokens of the reward backbone, by bytes.

    Returns:
        unit_of_token: one entry per id, -1 outside every unit.
        scored_as: for each unit, the unit whose score it takes: itself, unless all its bytes lie in tokens that share more
            bytes with a neighbour (a token belongs to one unit only); -1 if no token touches it.
    """
    tokens = encoder.token_bytes(ids)
    unit_of_token = tuple(int(u) for u in align(list(units), tokens).unit_of_token)
    scored_as = list(range(len(units)))
    for lost in set(range(len(units))) - set(unit_of_token):
        scored_as[lost] = -1
        start, position = units[lost].ranges[0][0], 0
        for token, unit in zip(tokens, unit_of_token, strict=True):
            if position <= start < position + len(token):
                scored_as[lost] = unit
            position += len(token)
    return unit_of_token, scored_as


def unit_scores(
    model: nn.Module,
    encoder: PatchEncoder,
    sequences: Sequence[Sequence[int]],
    units: Sequence[Sequence[int]],
    num_units: Sequence[int],
    batch_size: int,
) -> list[list[float]]:
    """R_line of every unit of every sequence, in order; batches of similar length, no gradient.

    Args:
        units: the unit of each token of each sequence (`place_units`). num_units: how many units each sequence has.
    """
    device = next(model.parameters()).device
    scores: list[list[float]] = [[] for _ in sequences]
    with torch.no_grad():
        for indices in batched([len(ids) for ids in sequences], batch_size):
            counts = [num_units[i] for i in indices]
            input_ids = encoder.pad([sequences[i] for i in indices]).to(device)
            unit_of_token = _number_through([units[i] for i in indices], counts, input_ids.shape[1]).to(device)
            values = model(input_ids=input_ids, unit_of_token=unit_of_token, num_units=sum(counts)).float().tolist()
            for index, count in zip(indices, counts, strict=True):
                scores[index], values = values[:count], values[count:]
    return scores


def _number_through(units: Sequence[Sequence[int]], counts: Sequence[int], width: int) -> Tensor:
    """Per-patch unit numbers as int64[B, width], numbered through the batch."""
    numbered = torch.full((len(units), width), -1, dtype=torch.long)
    offset = 0
    for row, (own, count) in enumerate(zip(units, counts, strict=True)):
        numbered[row, : len(own)] = torch.tensor([u + offset if u >= 0 else -1 for u in own], dtype=torch.long)
        offset += count
    return numbered


def collate(encoder: PatchEncoder, groups: Sequence[Group]) -> Batch:
    """A batch of whole instances, as the trainer's `batch_loss` reads it."""
    batch = flatten(groups)
    rows, row = distinct(batch)
    input_ids = encoder.pad([e.ids for e in rows])
    counts = [len(e.labels) for e in rows]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return {
        "input_ids": input_ids,
        "unit_of_token": _number_through([e.units for e in rows], counts, input_ids.shape[1]),
        "num_units": torch.empty(sum(counts)),  # a size, as Trainer moves tensors only
        "unit": torch.tensor([starts[r] + i for e, r in zip(batch, row, strict=True) for i in range(len(e.labels))]),
        **_spans(batch),
    }


class RLineTrainer(RewardTrainer):
    """Eq. 6 on batches of whole instances."""

    def batch_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        num_units = batch["num_units"].numel()
        scores = model(input_ids=batch["input_ids"], unit_of_token=batch["unit_of_token"], num_units=num_units)[
            batch["unit"]
        ]
        return contrastive_loss(scores, batch["labels"], batch["groups"], batch["weights"]), scores


def train_r_line(
    train: Sequence[Group],
    held_out: Sequence[Group],
    backbone: str | Path,
    encoder: PatchEncoder,
    settings: RLineSettings,
    output_dir: Path,
    work_dir: Path,
    seed: int,
    num_threads: int,
    info: dict[str, Any],
) -> dict[str, float | int | None]:
    """Train R_line and write it to `output_dir`; checkpoints and curves go to `work_dir`, from where a killed run continues.

    Returns:
        Held-out metrics (`reward_models.metrics.span_metrics`) and `loss`, Eq. 6 over the held-out spans.

    Raises:
        UserError: the training instances have no passing or no failing span, or as `training_arguments` and `fit`.
    """
    every_label = {label for example in flatten(train) for label in example.labels}
    if not {1, -1} <= every_label:
        missing = "passing" if 1 not in every_label else "failing"
        raise UserError(f"R_line: the candidates have no {missing} span, so there is nothing to contrast. Sample more.")
    model = new_r_line(backbone, settings.hidden_dim, settings.head_init_std, seed)
    examples = flatten(held_out)

    def evaluate(model: nn.Module) -> dict[str, float | int | None]:
        counts = [len(e.labels) for e in examples]
        nested = unit_scores(
            model, encoder, [e.ids for e in examples], [e.units for e in examples], counts, settings.micro_batch_size
        )
        scores = [score for own in nested for score in own]
        spans = _spans(examples)
        loss = contrastive_loss(torch.tensor(scores), spans["labels"], spans["groups"], spans["weights"])
        instances = [e.candidate.instance_id for e in examples for _ in e.labels]
        patches = [number for number, e in enumerate(examples) for _ in e.labels]
        return {"loss": float(loss), **span_metrics(scores, spans["labels"].tolist(), instances, patches)}

    checkpoints = work_dir / "checkpoints"
    trainer = RLineTrainer(
        settings=settings,
        evaluate_fn=evaluate,
        model=model,
        args=training_arguments(settings, max(map(len, train)), seed, checkpoints, "reward.r_line"),
        train_dataset=list(train),
        eval_dataset=list(held_out),
        data_collator=partial(collate, encoder),
        callbacks=[MetricsCallback(work_dir), EvaluateAtTheEnd(), Progress(KIND)],
    )
    fit(trainer, checkpoints, num_threads, seed)
    metrics = evaluate(model.eval())
    save_r_line(model, output_dir)
    save_reward_info(backbone, encoder, output_dir, info | {"kind": KIND})
    return metrics


def _spans(examples: Sequence[Example]) -> dict[str, Tensor]:
    """labels, weights and instance number of every span of some examples, in order."""
    numbers = group_numbers(examples)
    return {
        "labels": torch.tensor([label for e in examples for label in e.labels], dtype=torch.long),
        "weights": torch.tensor([weight for e in examples for weight in e.weights], dtype=torch.float32),
        "groups": torch.tensor([n for n, e in zip(numbers, examples, strict=True) for _ in e.labels], dtype=torch.long),
    }
