"""Stage I, first half: a teacher's attempts, kept only if they pass every test (section 3.2, "Execution Filtering").

    boostapr demonstrations experiment=demo        # python -m stages.demonstrations experiment=demo

Reads the train split. Writes attempts.jsonl (every attempt with its outcome, as they are executed) and
demonstrations.jsonl (the attempts that resolved their bug, in the order of the split).
"""

import hashlib
from collections.abc import Sequence

from boostapr.config import SplitSettings
from boostapr.errors import UserError
from boostapr.files import JsonlWriter
from boostapr.runs import StageRun
from envs.sandboxes import SandboxSettings, run_many
from envs.tasks import BugInstance
from envs.teachers import RuleTeacher, Teacher
from stages.chain import stage_main
from stages.common import graded, load_split, status_shares, write_rows
from stages.config import Config
from stages.settings import DemonstrationSettings, TeacherSettings


def run(
    settings: DemonstrationSettings,
    instances: Sequence[BugInstance],
    teacher: Teacher,
    sandbox: SandboxSettings,
    seed: int,
    stage: StageRun,
) -> None:
    """Ask, keep what resolves."""
    with JsonlWriter(stage.folder / "attempts.jsonl") as log:
        rows = {(row["instance_id"], row["attempt"]): row for row in graded(log.rows)}
        wanted = [(instance, attempt) for instance in instances for attempt in range(settings.num_attempts)]
        todo = [(i, attempt) for i, attempt in wanted if (i.instance_id, attempt) not in rows]
        answers = [teacher.demonstrate(i, attempt_seed(seed, i.instance_id, attempt)) for i, attempt in todo]
        items = [(i, answer.patch.encode()) for (i, _), answer in zip(todo, answers, strict=True)]
        for index, outcome in run_many(sandbox, items, "executing the teacher's attempts"):
            (instance, attempt), answer = todo[index], answers[index]
            row = {
                "instance_id": instance.instance_id,
                "attempt": attempt,
                "trace": answer.trace,
                "patch": answer.patch,
            }
            rows[instance.instance_id, attempt] = {**row, "outcome": outcome.to_dict(), "kept": outcome.resolved}
            log.write(rows[instance.instance_id, attempt])

    attempts = [rows[i.instance_id, attempt] for i, attempt in wanted]
    kept = [row for row in attempts if row["kept"]]
    if not kept:
        raise UserError(
            f"None of the {len(attempts)} attempts resolved its bug; see {stage.folder / 'attempts.jsonl'}."
        )
    write_rows(stage.folder / "demonstrations.jsonl", kept)
    values = {
        "attempts": len(attempts),
        "kept": len(kept),
        "keep_rate": len(kept) / len(attempts),
        "instances": len(instances),
        "instances_with_demonstration": len({row["instance_id"] for row in kept}),
        **status_shares([row["outcome"]["status"] for row in attempts]),
    }
    with stage.metrics() as metrics:
        metrics.log(0, values)
    print(f"kept {len(kept)} of {len(attempts)} attempts ({values['keep_rate']:.1%})")
    stage.finish(**{name: values[name] for name in ("attempts", "kept", "keep_rate", "instances")})


def open_teacher(settings: TeacherSettings) -> Teacher:
    """The teacher that the settings name."""
    return RuleTeacher(settings.accuracy)


def attempt_seed(seed: int, instance_id: str, attempt: int) -> int:
    """A seed of its own for every attempt, whatever the order or number of the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}-{instance_id}-{attempt}".encode()).digest()[:4], "big")


def check_apart(train: Sequence[BugInstance], held_out: Sequence[BugInstance], split: str) -> None:
    """No evaluation instance may be in the training data, under whatever id (section 3.1, contamination control).

    Raises:
        UserError: an id, a buggy snapshot or a reference patch is in both.
    """
    kinds = {
        "id": lambda i: i.instance_id,
        "snapshot": lambda i: i.files and sorted(i.files.items()),
        "patch": lambda i: i.patch,
    }
    for kind, key in kinds.items():
        seen = {str(key(instance)): instance.instance_id for instance in train if key(instance)}
        for instance in held_out:
            if str(key(instance)) in seen:
                twin = seen[str(key(instance))]
                raise UserError(
                    f"{instance.instance_id} of split `{split}` and {twin} of the training data have the same {kind}."
                )


def main(config: Config, stage: StageRun) -> None:
    settings = config.demonstrations
    instances = load_split(config.benchmark, settings.data)
    for split in settings.held_out:
        check_apart(
            instances, load_split(config.benchmark, SplitSettings(split=split, skip=0, num_instances=None)), split
        )
    run(settings, instances, open_teacher(settings.teacher), config.sandbox, config.seed, stage)


if __name__ == "__main__":
    stage_main("demonstrations", main)
