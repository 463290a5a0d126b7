"""The demo's base model: a Qwen2 of about a million parameters, trained from scratch on edits that mostly fix nothing.

    make base-model        (= python -m stages.base_model [key=value ...], numbers in conf/base_model/microbugs.yaml)

Writes a Hugging Face folder (model, tokenizer, what was measured) to `output_dir`. A run that was stopped goes on behind its last
finished phase that had the same settings (`output_dir`/phase-N.pt, for the same reason: later phases can be changed).
"""

from __future__ import annotations

import io
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import pre_tokenizers
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from boostapr.files import write_atomic
from boostapr.patches import parse_patch
from boostapr.prompts import repair_messages
from boostapr.tokens import encode_prompt, write_fingerprint
from envs.benchmarks.microbugs.corpus import edits, reviews, scrambled
from envs.benchmarks.microbugs.generate import generate
from envs.tasks import BugInstance
from envs.teachers import RuleTeacher
from stages.copy_heads import add_copy_heads

CONFIG = Path(__file__).parents[1] / "conf" / "base_model" / "microbugs.yaml"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VERDICTS = (" false", " true")
STATE = "phase-{}.pt"  # model and optimizer at the end of this phase, counted from 1
NUM_REVIEWS = 400  # in evaluation
NUM_FINGERPRINTS = 4  # prompts whose ids are kept beside the model, for later stages to check
Example = tuple[list[int], list[int], list[float]]  # prompt ids, response ids, weights of the response tokens


class Phase(BaseModel):
    """A stretch of training with a schedule of its own.

    Of its steps, a share trains on reviewed patches (`corpus.reviews`), a share on scrambled modules, to learn to copy
    (`corpus.scrambled`), and the rest on edits, of which the share fix_share fixes a bug (`corpus.edits`).
    """

    model_config = ConfigDict(extra="forbid")
    steps: int = Field(gt=0)
    review_share: float = Field(ge=0, le=1)
    scrambled_share: float = Field(ge=0, le=1)
    fix_share: float = Field(ge=0, le=1)
    learning_rate: float = Field(gt=0)

    @model_validator(mode="after")
    def _shares(self) -> Phase:
        if self.review_share + self.scrambled_share > 1:
            raise ValueError("review_share and scrambled_share add up to more than 1")
        return self


class BaseModelSettings(BaseModel):
    """conf/base_model/*.yaml."""

    model_config = ConfigDict(extra="forbid")
    output_dir: Path
    init_from: Path | None
    seed: int
    vocab_size: int = Field(ge=300)
    tokenizer_examples: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    rope_theta: float = Field(gt=0)
    initializer_range: float = Field(gt=0)
    batch_size: int = Field(gt=0)
    review_batch_size: int = Field(gt=0)
    weight_decay: float = Field(ge=0)
    warmup_steps: int = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    prompt_loss_weight: float = Field(ge=0)
    edit_loss_weight: float = Field(gt=0)
    phases: list[Phase]
    eval_every: int = Field(gt=0)
    eval_instances: int = Field(gt=0)
    num_threads: int = Field(gt=0)


def run(settings: BaseModelSettings) -> None:
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.num_threads)
    if settings.init_from:
        tokenizer = AutoTokenizer.from_pretrained(settings.init_from)
        model = Qwen2ForCausalLM.from_pretrained(settings.init_from, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(settings)
        model = new_model(settings, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=settings.weight_decay)
    dev = list(generate("dev", settings.seed + 1000, settings.eval_instances))
    done, log = resume(settings, model, optimizer)
    step, earlier = sum(p.steps for p in settings.phases[:done]), log[-1]["minutes"] if log else 0.0
    total, started = sum(p.steps for p in settings.phases), time.time()
    bar = tqdm(total=total, initial=step, desc="base model", unit="step")
    for number, phase in list(enumerate(settings.phases))[done:]:
        seed = settings.seed * 10 + number
        batches = mixed(tokenizer, settings, phase, seed)
        for phase_step in range(phase.steps):
            for group in optimizer.param_groups:
                group["lr"] = phase.learning_rate * schedule(phase_step, phase.steps, settings.warmup_steps)
            loss = weighted_loss(model, next(batches), settings.prompt_loss_weight, tokenizer.pad_token_id)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            bar.update()
            bar.set_postfix(loss=f"{loss.item():.3f}", fix_share=phase.fix_share)
            if step % settings.eval_every == 0 or phase_step + 1 == phase.steps:
                minutes = earlier + (time.time() - started) / 60
                log.append({"step": step, "minutes": minutes, **evaluate(model, tokenizer, dev)})
                bar.write(json.dumps(log[-1]))
                save(settings, model, tokenizer, log)
        finish_phase(settings, number, model, optimizer, log)
    bar.close()


def resume(
    settings: BaseModelSettings, model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer
) -> tuple[int, list[dict[str, float]]]:
    """How many phases an earlier run with these settings has finished, and its log. Model and optimizer go on from there."""
    for done in range(len(settings.phases), 0, -1):
        path = settings.output_dir / STATE.format(done)
        if path.exists():
            state = torch.load(path, weights_only=True)
            if state["settings"] == comparable(settings, done):
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                return done, state["log"]
    return 0, []


def finish_phase(
    settings: BaseModelSettings,
    number: int,
    model: Qwen2ForCausalLM,
    optimizer: torch.optim.Optimizer,
    log: list[dict[str, float]],
) -> None:
    state = {"settings": comparable(settings, number + 1), "log": log}
    state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    data = io.BytesIO()
    torch.save(state, data)
    write_atomic(settings.output_dir / STATE.format(number + 1), data.getvalue())


def comparable(settings: BaseModelSettings, num_phases: int) -> dict[str, object]:
    """What decides the result of the first phases."""
    values = settings.model_dump(mode="json", exclude={"output_dir", "eval_every", "eval_instances", "num_threads"})
    return {**values, "phases": values["phases"][:num_phases]}


def train_tokenizer(settings: BaseModelSettings) -> PreTrainedTokenizerBase:
    """A vocabulary for prompts, patches and traces of training templates."""
    corpus, teacher = edits(settings.seed + 77, fix_share=0.5), RuleTeacher(accuracy=1.0)
    texts = []
    for seed in range(settings.tokenizer_examples):
        instance = next(corpus)
        texts += [prompt_text(instance), instance.patch, teacher.demonstrate(instance, seed).trace]
    tokenizer = train_bpe(texts, settings.vocab_size)
    tokenizer.model_max_length = settings.max_position_embeddings
    return tokenizer


def train_bpe(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """Byte-level BPE of at most `vocab_size` entries, with ChatML's special tokens and template.

    It keeps Qwen2's own pre-tokenizer: whatever loads the folder as a Qwen2 tokenizer then gives the ids of training.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    blank = Qwen2Tokenizer(vocab={"<|endoftext|>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[])
    tokenizer: PreTrainedTokenizerBase = blank.train_new_from_iterator(
        texts, vocab_size, new_special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_model(settings: BaseModelSettings, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        num_key_value_heads=settings.num_attention_heads,
        max_position_embeddings=settings.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        initializer_range=settings.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    add_copy_heads(model)
    return model


def prompt_text(instance: BugInstance) -> str:
    return "".join(m["content"] for m in repair_messages(instance, "patch", "compact"))


def encode(tokenizer: PreTrainedTokenizerBase, instance: BugInstance, edit_weight: float = 1.0) -> Example:
    """Prompt, patch and end token. Tokens of edit lines weigh `edit_weight`: they are few, and what matters is in them."""
    prompt = encode_prompt(tokenizer, repair_messages(instance, "patch", "compact"))
    patch = tokenizer(instance.patch, return_offsets_mapping=True)
    signs = "".join(line[0] * len(line) for line in instance.patch.splitlines(keepends=True))
    in_hunks = instance.patch.index("@@")
    weights = [
        edit_weight if start > in_hunks and signs[start] in "+-" else 1.0 for start, _ in patch["offset_mapping"]
    ]
    return prompt, [*patch["input_ids"], tokenizer.eos_token_id], [*weights, 1.0]


def encode_review(tokenizer: PreTrainedTokenizerBase, patch: str, verdicts: Sequence[bool]) -> Example:
    """The patch alone, its end token, then a word for the whole and one for each edit."""
    words = "".join(VERDICTS[v] for v in (all(verdicts), *verdicts))
    review = [tokenizer.eos_token_id, *tokenizer(words)["input_ids"]]
    return tokenizer(patch)["input_ids"], review, [1.0] * len(review)


def mixed(
    tokenizer: PreTrainedTokenizerBase, settings: BaseModelSettings, phase: Phase, seed: int
) -> Iterator[list[Example]]:
    """The batches of a phase: reviews, scrambled modules and edits, by chance."""
    rng = random.Random(seed)

    def patches(instances: Iterator[BugInstance]) -> Iterator[list[Example]]:
        examples = (encode(tokenizer, instance, settings.edit_loss_weight) for instance in instances)
        return batched(settings, examples, settings.batch_size)

    reviewed = (encode_review(tokenizer, *review) for review in reviews(seed))
    sources = [
        batched(settings, reviewed, settings.review_batch_size),
        patches(scrambled(seed)),
        patches(edits(seed, phase.fix_share)),
    ]
    weights = [phase.review_share, phase.scrambled_share, 1 - phase.review_share - phase.scrambled_share]
    while True:
        yield next(rng.choices(sources, weights)[0])


def batched(settings: BaseModelSettings, examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    """Batches of examples of about the same length."""
    rng = random.Random(settings.seed)
    while True:
        pool = [next(examples) for _ in range(size * 16)]
        pool = [e for e in pool if len(e[0]) + len(e[1]) <= settings.max_position_embeddings]
        pool.sort(key=lambda e: len(e[0]) + len(e[1]))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from groups


def weighted_loss(model: Qwen2ForCausalLM, batch: list[Example], prompt_weight: float, pad: int) -> torch.Tensor:
    """Mean next-token loss, prompt tokens weighted by `prompt_weight`, response tokens by their own weights."""
    width = max(len(p) + len(r) for p, r, _ in batch)
    ids = torch.full((len(batch), width), pad)
    weights = torch.zeros(len(batch), width)
    for row, (prompt, response, response_weights) in enumerate(batch):
        length = len(prompt) + len(response)
        ids[row, :length] = torch.tensor(prompt + response)
        weights[row, : len(prompt)] = prompt_weight
        weights[row, len(prompt) : length] = torch.tensor(response_weights)
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()


def schedule(step: int, total: int, warmup: int) -> float:
    """Linear warm-up, then cosine to 5%."""
    return min(1.0, (step + 1) / max(1, warmup)) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / total)))


@torch.no_grad()
def evaluate(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, instances: list[BugInstance]
) -> dict[str, float]:
    """Of greedy answers to dev instances, the share that are valid diffs and that whose edit lines are the reference's; of
    reviews of dev patches, the share in which the verdict on the whole is right."""
    model.eval()
    tokenizer.padding_side = "left"
    prompts = [encode(tokenizer, i)[0] for i in instances]
    inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    out = model.generate(**inputs, do_sample=False, max_new_tokens=256)[:, inputs["input_ids"].shape[1] :]
    agreed = 0
    for patch, verdicts in islice(reviews(0, "dev"), NUM_REVIEWS):
        ids, review, _ = encode_review(tokenizer, patch, verdicts)
        scores = model(input_ids=torch.tensor([[*ids, review[0]]])).logits[0, -1]
        false, true = (scores[tokenizer(word)["input_ids"][0]] for word in VERDICTS)
        agreed += bool(true > false) == all(verdicts)
    model.train()
    valid = same = 0
    for instance, ids in zip(instances, out, strict=True):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        valid += parse_patch(text).format == "valid"
        same += edit_lines(text) == edit_lines(instance.patch)
    return {
        "valid_diff_rate": valid / len(instances),
        "reference_edit_rate": same / len(instances),
        "review_accuracy": agreed / NUM_REVIEWS,
    }


def edit_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def save(
    settings: BaseModelSettings,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    log: list[dict[str, float]],
) -> None:
    tokenizer.padding_side = "right"
    model.save_pretrained(settings.output_dir)
    tokenizer.save_pretrained(settings.output_dir)
    bugs = generate("dev", settings.seed, NUM_FINGERPRINTS)
    write_fingerprint(settings.output_dir, tokenizer, [repair_messages(bug, "patch", "compact") for bug in bugs])
    (settings.output_dir / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")


def main() -> None:
    config = OmegaConf.merge(OmegaConf.load(CONFIG), OmegaConf.from_cli(sys.argv[1:]))
    run(BaseModelSettings.model_validate(OmegaConf.to_container(config)))


if __name__ == "__main__":
    main()
