"""What training R_seq and R_line has in common: Trainer arguments, optimiser groups, checkpoints, held-out scoring."""

import contextlib
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from tqdm import tqdm
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging as transformers_logging

from boostapr.errors import UserError
from boostapr.metrics import MetricsWriter
from reward_models.settings import OptimizationSettings

logger = logging.getLogger(__name__)

HEAD_NAMES = ("score.", "head.")  # parameters that start at random and have their own learning rate
Batch = dict[str, Any]


class RewardTrainer(Trainer):
    """A Trainer over groups (the candidates of one instance), with its own loss and held-out metrics.

    A subclass gives `batch_loss`. Held-out groups are scored at every checkpoint by `evaluate_fn(model) -> metrics`;
    `eval_loss` there decides which checkpoint is kept.
    """

    def __init__(
        self,
        *,
        settings: OptimizationSettings,
        evaluate_fn: Callable[[nn.Module], dict[str, float | int | None]],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reward_settings = settings
        self.evaluate_fn = evaluate_fn
        # Our loss is a mean over a micro-batch: let Trainer average it over the accumulation steps.
        self.model_accepts_loss_kwargs = False

    def batch_loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(loss, scores) of one batch."""
        raise NotImplementedError

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, Any]:
        loss, scores = self.batch_loss(model, inputs)
        return (loss, {"scores": scores}) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the held-out instances; metrics that are undefined there are left out."""
        assert self.model is not None
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            values = self.evaluate_fn(self.model)
        self.model.train(was_training)
        metrics = {f"{metric_key_prefix}_{name}": float(value) for name, value in values.items() if value is not None}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        groups: Any = self.train_dataset if train_dataset is None else train_dataset
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return SimilarLengths([max(len(e.ids) for e in group) for group in groups], step, self.args.seed)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """AdamW with four groups: backbone and head, each with and without weight decay (none on biases and norms)."""
        if self.optimizer is None:
            target = self.model if model is None else model
            assert target is not None
            decayed = set(self.get_decay_parameter_names(target))
            groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
            for name, parameter in target.named_parameters():
                if parameter.requires_grad:
                    is_head = name.removeprefix("module.").startswith(HEAD_NAMES)
                    groups.setdefault((is_head, name in decayed), []).append(parameter)
            settings = self.reward_settings
            self.optimizer = torch.optim.AdamW(
                [
                    {
                        "params": parameters,
                        "lr": settings.head_learning_rate if is_head else settings.learning_rate,
                        "weight_decay": settings.weight_decay if has_decay else 0.0,
                    }
                    for (is_head, has_decay), parameters in groups.items()
                ],
                betas=(settings.adam_beta1, settings.adam_beta2),
            )
        return self.optimizer


class SimilarLengths(Sampler[int]):
    """Every group once an epoch; each optimiser step gets groups of similar length (little padding), the steps come shuffled.

    The order depends on seed and epoch alone, so that a resumed run goes on with the very groups that were due.
    """

    pool_steps = 16  # as many steps' groups are sorted together: enough to save padding, few enough to mix

    def __init__(self, lengths: Sequence[int], step_size: int, seed: int) -> None:
        self._lengths = lengths
        self._step_size = step_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the data loader before each epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed}-{self._epoch}")
        order = rng.sample(range(len(self._lengths)), len(self._lengths))
        width = self._step_size * self.pool_steps
        pools = (sorted(order[i : i + width], key=lambda n: self._lengths[n]) for i in range(0, len(order), width))
        steps = [pool[i : i + self._step_size] for pool in pools for i in range(0, len(pool), self._step_size)]
        # A step that is not full would be filled up from the next one: it comes last.
        full = [step for step in steps if len(step) == self._step_size]
        rng.shuffle(full)
        rest = [step for step in steps if len(step) < self._step_size]
        return iter([n for step in full + rest for n in step])


class MetricsCallback(TrainerCallback):
    """Writes what Trainer logs to metrics.jsonl and TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: MetricsWriter | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self._writer = MetricsWriter(self._folder, resume_step=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._writer is not None and logs:
            self._writer.log(state.global_step, {k: v for k, v in logs.items() if isinstance(v, int | float)})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def training_arguments(
    settings: OptimizationSettings, group_size: int, seed: int, checkpoints: Path, description: str
) -> TrainingArguments:
    """Trainer arguments for batches made of groups of `group_size` candidates.

    Raises:
        UserError: a batch cannot hold one whole instance, or the batch does not divide over the devices.
    """
    if settings.micro_batch_size < group_size:
        raise UserError(
            f"{description}: micro_batch_size={settings.micro_batch_size} cannot hold the {group_size} candidates of one "
            "instance, without which there are no preference pairs. Raise it, or sample fewer candidates."
        )
    use_cpu = not torch.cuda.is_available()
    args = TrainingArguments(
        output_dir=str(checkpoints),
        per_device_train_batch_size=settings.micro_batch_size // group_size,
        num_train_epochs=settings.num_epochs,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup_fraction,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.bf16,
        gradient_checkpointing=settings.gradient_checkpointing,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=settings.checkpoint_steps,
        save_steps=settings.checkpoint_steps,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        logging_steps=settings.logging_steps,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=not use_cpu,
        use_cpu=use_cpu,
        seed=seed,
        data_seed=seed,
    )
    per_step = settings.micro_batch_size * args.world_size
    if settings.batch_size % per_step:
        raise UserError(
            f"{description}: batch_size={settings.batch_size} does not divide into micro-batches of "
            f"{settings.micro_batch_size} on {args.world_size} devices. Make it a multiple of {per_step}."
        )
    args.gradient_accumulation_steps = settings.batch_size // per_step
    return args


def fit(trainer: RewardTrainer, checkpoints: Path, num_threads: int, seed: int) -> None:
    """Train to the end, from the newest complete checkpoint if there is one; the best checkpoint's weights stay in the model.

    Raises:
        UserError: the loss is no longer a number.
    """
    if trainer.args.use_cpu:
        torch.set_num_threads(num_threads)
    set_seed(seed)
    trainer.remove_callback(PrinterCallback)
    newest = newest_checkpoint(checkpoints)
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    if losses and not all(loss == loss and abs(loss) != float("inf") for loss in losses):
        raise UserError(
            f"{checkpoints.parent}: the loss became infinite or NaN. Lower learning_rate or head_learning_rate."
        )


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint that was written whole. Trainer writes trainer_state.json last, so a readable one vouches for the
    rest."""
    folders = sorted(checkpoints.glob("checkpoint-*"), key=lambda p: int(p.name.rsplit("-", 1)[1]), reverse=True)
    for folder in folders:
        try:
            json.loads((folder / "trainer_state.json").read_text())
        except (OSError, ValueError):
            logger.warning("%s is incomplete (interrupted while saving); using an earlier one", folder)
            continue
        return folder
    return None


def batched(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices sorted by length, cut into batches: little padding, every index once."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


class Progress(TrainerCallback):
    """A progress bar with the newest numbers beside it, instead of Trainer's printed line for each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: tqdm[Any] | None = None
        self._shown: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self._bar = tqdm(desc=self._name, total=state.max_steps, initial=state.global_step, unit="step")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        names = {"loss": "loss", "eval_loss": "held_out_loss", "eval_pairwise_accuracy": "held_out_pairs"}
        self._shown |= {names[key]: f"{float(value):.3f}" for key, value in (logs or {}).items() if key in names}
        if self._bar is not None:
            self._bar.set_postfix(self._shown, refresh=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class EvaluateAtTheEnd(TrainerCallback):
    """The last step is a checkpoint too, whatever `checkpoint_steps`: it must be scored to be chosen."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
            control.should_save = True
        return control


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Load a backbone without transformers' report that a head is missing and a language model head is left over: that is
    the plan here."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
