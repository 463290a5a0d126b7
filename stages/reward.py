"""Stage II (section 3.3): train the two reward models on executed candidates.

    boostapr reward experiment=demo        (python -m stages.reward experiment=demo)

Reads candidates/candidates.jsonl and the instances they belong to; writes reward/r_seq (scores a patch, Eq. 4),
reward/r_line (scores its edit spans, Eq. 6) and reward/metrics.json (Table 8 on held-out instances, and how the span labels
were found). Interrupted, it continues from the newest checkpoint; a model that is finished is not trained again.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boostapr.credit import units
from boostapr.errors import UserError
from boostapr.files import write_json
from boostapr.patches import parse_patch
from boostapr.runs import StageRun
from envs.tasks import BugInstance
from reward_models.data import Candidate, Example, Group, group_by_instance, load_candidates, split_instances, usable
from reward_models.encoding import PatchEncoder
from reward_models.labels import LabelSource, SpanLabel, label_spans
from reward_models.r_line import place_units, train_r_line
from reward_models.r_seq import train_r_seq
from reward_models.settings import RewardSettings
from stages.chain import stage_main
from stages.common import load_split
from stages.config import Config

GRANULARITY = "edit_line"  # R_line learns on edit-line spans (section 3.3.3), whatever it is asked for later


def run(
    settings: RewardSettings,
    candidates_path: Path,
    instances: Mapping[str, BugInstance],
    backbone: str | Path,
    seed: int,
    output_dir: Path,
) -> dict[str, Any]:
    """Train R_seq, then R_line; returns what it writes to metrics.json.

    Raises:
        UserError: the candidates or the backbone cannot be used; says which, where, and what to do.
    """
    encoder = PatchEncoder(backbone)
    candidates = load_candidates(candidates_path)
    ids = encoder.encode([c.response for c in candidates])
    kept, dropped = usable(candidates, [len(own) for own in ids], settings.max_length)
    examples = [Example(candidates[i], ids[i]) for i in kept]
    train_ids, held_out_ids = split_instances(
        [e.candidate.instance_id for e in examples], settings.validation_fraction, seed
    )
    info = {"input_mode": settings.input_mode, "max_length": settings.max_length}
    common: dict[str, Any] = {
        "backbone": backbone,
        "encoder": encoder,
        "seed": seed,
        "num_threads": settings.num_threads,
        "info": info,
    }

    def split(own: Sequence[Example]) -> tuple[list[Group], list[Group]]:
        groups = group_by_instance(own)
        return _having(groups, train_ids), _having(groups, held_out_ids)

    print(f"R_seq: {len(examples)} candidates of {len(train_ids)} + {len(held_out_ids)} held-out instances", flush=True)
    seq_metrics = _once(
        output_dir / "r_seq",
        output_dir / "training" / "r_seq",
        lambda out, work: train_r_seq(
            *split(examples), settings=settings.r_seq, output_dir=out, work_dir=work, **common
        ),
    )

    labels = label_candidates([e.candidate for e in examples], instances)
    label_counts = count_labels(labels)
    print(f"R_line: span labels {label_counts}", flush=True)
    weights = {**settings.r_line.label_weights, LabelSource.PASSING: 1.0}
    labelled = [_with_labels(encoder, e, own, weights) for e, own in zip(examples, labels, strict=True)]
    line_metrics = _once(
        output_dir / "r_line",
        output_dir / "training" / "r_line",
        lambda out, work: train_r_line(
            *split([e for e in labelled if any(e.labels)]),
            settings=settings.r_line,
            output_dir=out,
            work_dir=work,
            **common,
        ),
    )
    metrics = {
        "data": {
            "num_candidates": len(candidates),
            **dropped,
            "num_training_instances": len(train_ids),
            "num_held_out_instances": len(held_out_ids),
            "num_resolved": sum(e.candidate.outcome.resolved for e in examples),
        },
        "labels": label_counts,
        "r_seq": seq_metrics,
        "r_line": line_metrics,
    }
    write_json(output_dir / "metrics.json", metrics)
    return metrics


def label_candidates(candidates: Sequence[Candidate], instances: Mapping[str, BugInstance]) -> list[list[SpanLabel]]:
    """The span labels of each candidate (the cascade of section 3.3.3).

    Raises:
        UserError: a candidate belongs to no known instance.
    """
    labels = []
    for candidate in candidates:
        instance = instances.get(candidate.instance_id)
        if instance is None:
            raise UserError(
                f"The candidates have an instance {candidate.instance_id!r} that the benchmark does not: they were sampled for "
                "another one. Run `boostapr candidates` again."
            )
        patch = parse_patch(candidate.response)
        labels.append(label_spans(patch, candidate.outcome, instance.files, instance.test_files))
    return labels


def count_labels(labels: Sequence[Sequence[SpanLabel]]) -> dict[str, int]:
    """Spans per label source; for failing patches also how many spans are negative (the rest are neutral)."""
    every = [label for own in labels for label in own]
    spans = Counter(label.source for label in every)
    negative = Counter(label.source for label in every if label.value < 0)
    counts: dict[str, int] = {}
    for source in LabelSource:
        counts[f"num_{source}_spans"] = spans[source]
        if source is not LabelSource.PASSING:
            counts[f"num_{source}_negative_spans"] = negative[source]
    return counts


def _with_labels(
    encoder: PatchEncoder, example: Example, labels: Sequence[SpanLabel], weights: Mapping[LabelSource, float]
) -> Example:
    own_units = units(parse_patch(example.candidate.response), GRANULARITY)
    unit_of_token, scored_as = place_units(encoder, example.ids, own_units)
    return Example(
        example.candidate,
        example.ids,
        unit_of_token,
        # A span without a token of its own is scored as its neighbour and teaches nothing.
        tuple(label.value if scored_as[i] == i else 0 for i, label in enumerate(labels)),
        tuple(weights[label.source] for label in labels),
    )


def _having(groups: Sequence[Group], ids: set[str]) -> list[Group]:
    return [group for group in groups if group[0].candidate.instance_id in ids]


def _once(target: Path, work: Path, train: Any) -> dict[str, Any]:
    """Train into a scratch folder and rename it, so that `target` exists only when it is whole; then drop the checkpoints."""
    record = work / "result.json"
    if target.exists() and record.exists():
        result: dict[str, Any] = json.loads(record.read_text())
        return result
    scratch = work / "model"
    shutil.rmtree(scratch, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    metrics: dict[str, Any] = train(scratch, work)
    write_json(record, metrics)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    shutil.rmtree(work / "checkpoints", ignore_errors=True)
    return metrics


def main(config: Config, stage: StageRun) -> None:
    settings = config.reward
    backbone = settings.backbone or stage.input(str(settings.run_backbone))
    instances = {i.instance_id: i for i in load_split(config.benchmark, config.candidates.data)}
    metrics = run(settings, stage.input("candidates/candidates.jsonl"), instances, backbone, config.seed, stage.folder)
    for name in ("r_seq", "r_line"):
        print(f"{name} on held-out bugs: pairwise accuracy {metrics[name]['pairwise_accuracy']}")
    stage.finish(labels=metrics["labels"])


if __name__ == "__main__":
    stage_main("reward", main)
