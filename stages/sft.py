"""Stage I, second half: supervised fine-tuning on the kept demonstrations (Eq. 2; section 3.2, appendix B.1).

    boostapr sft experiment=demo        # python -m stages.sft experiment=demo

Reads demonstrations/demonstrations.jsonl and the base model. Writes model/ (a Hugging Face folder with the tokenizer and
boostapr_tokens.json), dropped.jsonl (examples that were too long), checkpoints/ and metrics. Resumes from a checkpoint.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from boostapr.errors import UserError
from boostapr.files import read_jsonl
from boostapr.metrics import MetricsWriter
from boostapr.prompts import STYLES, repair_messages
from boostapr.runs import StageRun
from boostapr.tokens import check_fingerprint, has_fingerprint, read_fingerprint, write_fingerprint
from envs.tasks import BugInstance
from stages.chain import stage_main
from stages.checkpoints import last_checkpoint, replace_folder
from stages.common import load_split, model_path, write_rows
from stages.config import Config
from stages.settings import LoraSettings, SFTSettings
from stages.sft_data import GroupedSampler, collate, make_examples, split_by_instance

NUM_TOKEN_SAMPLES = 4  # instances whose prompts stand in boostapr_tokens.json


def run(
    settings: SFTSettings,
    demonstrations: Sequence[Mapping[str, Any]],
    instances: Mapping[str, BugInstance],
    seed: int,
    stage: StageRun,
) -> None:
    """Train on every kept demonstration and export the model."""
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    tokenizer, model = load(settings)
    examples, dropped = make_examples(demonstrations, instances, tokenizer, settings, seed)
    write_rows(stage.folder / "dropped.jsonl", dropped)
    if not examples:
        raise UserError(
            f"All {len(dropped)} examples are longer than `sft.max_length` = {settings.max_length} tokens: raise it."
        )
    train, validation = split_by_instance(examples, settings.validation_share, seed)
    print(f"{len(train)} training examples, {len(validation)} for validation, {len(dropped)} too long and dropped")

    checkpoint = last_checkpoint(stage.folder / "checkpoints")
    with stage.metrics(resume_step=checkpoint.step if checkpoint else 0) as metrics:
        trainer = SFTTrainer(
            model=model,
            args=training_arguments(settings, seed, stage.folder / "checkpoints", bool(validation)),
            train_dataset=[example.features() for example in train],
            eval_dataset=[example.features() for example in validation] or None,
            data_collator=lambda rows: collate(rows, tokenizer.pad_token_id),
            callbacks=[LogCallback(metrics)],
        )
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)

    some = [instances[example.instance_id] for example in examples[:: max(1, len(examples) // NUM_TOKEN_SAMPLES)]]
    export(trainer.model, tokenizer, some[:NUM_TOKEN_SAMPLES], settings, stage.folder / "model")
    stage.finish(
        steps=trainer.state.global_step,
        examples=len(train),
        validation_examples=len(validation),
        dropped=len(dropped),
        tokens=sum(len(example.input_ids) for example in train),
    )


class SFTTrainer(Trainer):
    """Trainer whose batches hold examples of similar length, in shuffled order. The loss is the mean over response tokens."""

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        data: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = [len(row["input_ids"]) for row in data]
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return GroupedSampler(lengths, step, self.args.seed)


class LogCallback(TrainerCallback):
    """Sends what the Trainer logs to metrics.jsonl and TensorBoard."""

    def __init__(self, metrics: MetricsWriter) -> None:
        self.metrics = metrics

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        values = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self.metrics.log(state.global_step, values)


def load(settings: SFTSettings) -> tuple[Any, Any]:
    """Tokenizer and model of the base, with fresh adapters if LoRA is on.

    Raises:
        UserError: there is no such model, its context is shorter than max_length, or it has no chat template.
        TokenMismatchError: the base was trained on other token ids than its tokenizer gives here.
    """
    name = model_path(settings.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    except OSError as error:
        raise UserError(f"`sft.model`: cannot load {name}: {str(error).splitlines()[0]}") from error
    context = getattr(model.config, "max_position_embeddings", settings.max_length)
    if context < settings.max_length:
        raise UserError(f"`sft.max_length` is {settings.max_length}, but {name} has a context of {context} tokens.")
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        raise UserError(f"`sft.model`: the tokenizer of {name} needs a chat template, an eos and a pad token.")
    if has_fingerprint(name):
        check_fingerprint(read_fingerprint(name), tokenizer, f"transformers' tokenizer for {name}")
    if settings.lora.rank > 0:
        model = add_lora(model, settings.lora)
    return tokenizer, model


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """The model with trainable low-rank adapters; everything else is frozen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.target_modules,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def training_arguments(settings: SFTSettings, seed: int, folder: Path, validate: bool) -> TrainingArguments:
    """Appendix B.1 in the words of transformers: AdamW, linear warm-up, cosine decay, clipping."""
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.num_epochs,
        per_device_train_batch_size=settings.micro_batch_size,
        per_device_eval_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.precision == "bfloat16",
        gradient_checkpointing=settings.gradient_checkpointing,
        use_cpu=settings.device == "cpu",
        seed=seed,
        data_seed=seed,
        save_strategy="steps",
        save_steps=settings.checkpoint_steps,
        save_total_limit=settings.num_checkpoints,
        logging_steps=settings.logging_steps,
        eval_strategy="epoch" if validate else "no",
        prediction_loss_only=True,
        remove_unused_columns=False,
        dataloader_pin_memory=settings.device == "cuda",
        report_to=[],
    )


def export(model: Any, tokenizer: Any, instances: Sequence[BugInstance], settings: SFTSettings, target: Path) -> None:
    """Write the model folder, whole or not at all, and make sure that whoever loads it gets the token ids of training."""
    if settings.lora.rank > 0:
        model = model.merge_and_unload()
    if settings.precision == "bfloat16":
        model = model.to(torch.bfloat16)
    with replace_folder(target) as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        prompts = [repair_messages(instance, style, settings.template) for instance in instances for style in STYLES]
        write_fingerprint(scratch, tokenizer, prompts)
        check_fingerprint(read_fingerprint(scratch), AutoTokenizer.from_pretrained(scratch), "the exported tokenizer")


def main(config: Config, stage: StageRun) -> None:
    demonstrations = read_jsonl(stage.input("demonstrations/demonstrations.jsonl"))
    instances = {i.instance_id: i for i in load_split(config.benchmark, config.demonstrations.data)}
    run(config.sft, demonstrations, instances, config.seed, stage)


if __name__ == "__main__":
    stage_main("sft", main)
