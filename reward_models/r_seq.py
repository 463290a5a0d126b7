"""R_seq (section 3.3.2): a causal language model with a scalar head on the last token's final hidden state.

It is a plain Hugging Face sequence classifier with one label and nothing else, so that whatever reads those (Transformers,
vLLM `classify`) can serve it.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from boostapr.errors import UserError
from reward_models.data import Group, distinct, flatten, group_numbers
from reward_models.encoding import PatchEncoder, load_reward_info, save_reward_info
from reward_models.losses import hybrid_loss
from reward_models.metrics import sequence_metrics
from reward_models.settings import RSeqSettings
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

KIND = "R_seq"


def new_r_seq(backbone: str | Path, encoder: PatchEncoder, head_init_std: float, seed: int) -> PreTrainedModel:
    """R_seq on a pretrained backbone; the head starts at N(0, head_init_std^2) (appendix B.2: std 0.01)."""
    with quiet_loading():
        model = AutoModelForSequenceClassification.from_pretrained(
            backbone,
            num_labels=1,
            problem_type="regression",  # served as it is: no sigmoid over the score
            pad_token_id=encoder.pad_id,
            dtype=torch.float32,
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.score.weight.copy_(torch.randn(model.score.weight.shape, generator=generator) * head_init_std)
    return model


def load_r_seq(directory: Path, device: torch.device) -> tuple[PreTrainedModel, PatchEncoder, dict[str, Any]]:
    """A trained R_seq, ready to score.

    Raises:
        UserError: the folder holds none (see `reward_models.encoding.load_reward_info`).
    """
    info, encoder = load_reward_info(directory, KIND)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    return model.to(device).eval(), encoder, info


def sequence_scores(
    model: nn.Module, encoder: PatchEncoder, sequences: Sequence[Sequence[int]], batch_size: int
) -> list[float]:
    """R_seq of token id sequences, in order; batches of similar length, no gradient."""
    device = next(model.parameters()).device
    scores = [0.0] * len(sequences)
    with torch.no_grad():
        for indices in batched([len(ids) for ids in sequences], batch_size):
            input_ids = encoder.pad([sequences[i] for i in indices]).to(device)
            values = model(input_ids=input_ids, use_cache=False).logits[:, 0].float().tolist()
            for index, value in zip(indices, values, strict=True):
                scores[index] = value
    return scores


def collate(encoder: PatchEncoder, groups: Sequence[Group]) -> Batch:
    """A batch of whole instances, as the trainer's `batch_loss` reads it."""
    batch = flatten(groups)
    rows, row = distinct(batch)
    return {
        "input_ids": encoder.pad([e.ids for e in rows]),
        "row": torch.tensor(row),
        "targets": torch.tensor([e.candidate.target for e in batch], dtype=torch.float32),
        "groups": torch.tensor(group_numbers(batch)),
    }


class RSeqTrainer(RewardTrainer):
    """Eq. 4 on batches of whole instances."""

    lambda_reg: float

    def batch_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        scores = model(input_ids=batch["input_ids"], use_cache=False).logits[:, 0].float()[batch["row"]]
        return hybrid_loss(scores, batch["targets"], batch["groups"], self.lambda_reg), scores


def train_r_seq(
    train: Sequence[Group],
    held_out: Sequence[Group],
    backbone: str | Path,
    encoder: PatchEncoder,
    settings: RSeqSettings,
    output_dir: Path,
    work_dir: Path,
    seed: int,
    num_threads: int,
    info: dict[str, Any],
) -> dict[str, float | int | None]:
    """Train R_seq and write it to `output_dir`; checkpoints and curves go to `work_dir`, from where a killed run continues.

    Returns:
        Held-out metrics (`reward_models.metrics.sequence_metrics`) and `loss`, Eq. 4 on the held-out candidates.

    Raises:
        UserError: no training instance has two candidates with different r*, or as `training_arguments` and `fit`.
    """
    if not any(len({e.candidate.target for e in group}) > 1 for group in train):
        raise UserError("R_seq: no instance has two candidates with different rewards, so there is nothing to prefer.")
    model = new_r_seq(backbone, encoder, settings.head_init_std, seed)
    examples = flatten(held_out)

    def evaluate(model: nn.Module) -> dict[str, float | int | None]:
        scores = sequence_scores(model, encoder, [e.ids for e in examples], settings.micro_batch_size)
        targets = [e.candidate.target for e in examples]
        groups = torch.tensor(group_numbers(examples))
        loss = hybrid_loss(torch.tensor(scores), torch.tensor(targets), groups, settings.lambda_reg)
        successes = [e.candidate.outcome.resolved for e in examples]
        applied = [e.candidate.outcome.applied for e in examples]
        table = sequence_metrics(scores, targets, successes, applied, [e.candidate.instance_id for e in examples])
        return {"loss": float(loss), **table}

    checkpoints = work_dir / "checkpoints"
    trainer = RSeqTrainer(
        settings=settings,
        evaluate_fn=evaluate,
        model=model,
        args=training_arguments(settings, max(map(len, train)), seed, checkpoints, "reward.r_seq"),
        train_dataset=list(train),
        eval_dataset=list(held_out),
        data_collator=partial(collate, encoder),
        callbacks=[MetricsCallback(work_dir), EvaluateAtTheEnd(), Progress(KIND)],
    )
    trainer.lambda_reg = settings.lambda_reg
    fit(trainer, checkpoints, num_threads, seed)
    metrics = evaluate(model.eval())
    model.save_pretrained(output_dir)
    save_reward_info(backbone, encoder, output_dir, info | {"kind": KIND})
    return metrics
