"""microbugs: what the splits promise (templates and kinds kept apart, real bugs, the same bytes from the same seed)."""

import ast
import json
import re
from collections import Counter, defaultdict
from itertools import islice

import pytest

from boostapr.patches import parse_patch
from envs.benchmarks.microbugs import SHIPPED_COUNTS, SHIPPED_SEED, load_split, split_path
from envs.benchmarks.microbugs.cli import main
from envs.benchmarks.microbugs.corpus import edits, reviews
from envs.benchmarks.microbugs.generate import SPLITS, call, generate
from envs.benchmarks.microbugs.mutations import KINDS, OOD_KINDS, mutations
from envs.benchmarks.microbugs.templates import all_templates, split_of
from envs.tasks import BugInstance, load_instances, to_json

ALL = {split: load_split(split) for split in SPLITS}


def templates(instances: list[BugInstance]) -> set[str]:
    return {t for i in instances for t in i.extra["templates"]}


def kinds(instances: list[BugInstance]) -> set[str]:
    return {k for i in instances for k in i.extra["bug_kinds"]}


def test_splits_share_no_template_and_no_instance() -> None:
    """A model is never tested on a function template that it was trained on."""
    for one in SPLITS:
        for other in SPLITS:
            if one != other:
                assert not templates(ALL[one]) & templates(ALL[other])
                assert not {str(i.files) for i in ALL[one]} & {str(i.files) for i in ALL[other]}
                assert not {i.patch for i in ALL[one]} & {i.patch for i in ALL[other]}


def test_out_of_distribution_has_families_and_kinds_of_its_own() -> None:
    families = {split: {t.split("/")[0] for t in templates(ALL[split])} for split in SPLITS}
    assert not families["test_ood"] & families["train"]
    assert kinds(ALL["test_ood"]) == OOD_KINDS
    assert not kinds(ALL["train"]) & OOD_KINDS


def test_the_sets_are_as_large_and_as_mixed_as_promised() -> None:
    """At least 300 test instances, twelve kinds of mutation, one to four functions, one to three bugs."""
    assert {split: len(instances) for split, instances in ALL.items()} == SHIPPED_COUNTS
    assert len(ALL["test"]) >= 300
    assert len(kinds(ALL["train"])) >= 12
    assert {len(i.extra["templates"]) for i in ALL["test"]} == {1, 2, 3, 4}
    assert {i.extra["num_bugs"] for i in ALL["test"]} == {1, 2, 3}


@pytest.mark.parametrize("split", SPLITS)
def test_shipped_files_are_what_the_generator_makes(split: str) -> None:
    """The shipped bytes come from the shipped code and seed; nothing was picked by hand."""
    made = [json.dumps(to_json(i)) for i in islice(generate(split, SHIPPED_SEED, SHIPPED_COUNTS[split]), 40)]
    assert split_path(split).read_text().splitlines()[:40] == made


def reference_source(instance: BugInstance) -> str:
    """The buggy file with the reference patch applied, by the patch's own line numbers."""
    [source] = instance.files.values()
    lines, at = source.split("\n"), 0
    for line in instance.patch.split("\n")[2:]:
        if line.startswith("@@"):
            at = int(line.split("+")[1].split(",")[0]) - 1
        elif line.startswith("-"):
            assert lines.pop(at) == line[1:]
        elif line:
            if line.startswith("+"):
                lines.insert(at, line[1:])
            at += 1
    return "\n".join(lines)


@pytest.mark.parametrize("split", SPLITS)
def test_the_reference_patch_makes_every_assertion_true_and_the_bug_does_not(split: str) -> None:
    """FAIL_TO_PASS fails before and passes after; PASS_TO_PASS passes on both sides."""
    for instance in ALL[split][:60]:
        [buggy], fixed = instance.files.values(), reference_source(instance)
        [tests] = instance.test_files.values()
        before, after = failing(buggy, tests), failing(fixed, tests)
        assert not after, instance.instance_id
        assert before == {t.split(".", 1)[1] for t in instance.FAIL_TO_PASS}, instance.instance_id
        assert not before & {t.split(".", 1)[1] for t in instance.PASS_TO_PASS}


def failing(source: str, tests: str) -> set[str]:
    """The tests of a generated test file that `source` fails, read from its syntax tree."""
    found = set()
    for group in ast.parse(tests).body:
        for test in getattr(group, "body", []):
            for statement in test.body:
                called, expected = statement.value.args
                arguments = [ast.literal_eval(a) for a in called.args]
                try:
                    same = call(source, called.func.attr, arguments) == ast.literal_eval(expected)
                except Exception:
                    same = False
                if not same:
                    found.add(f"{group.name}::{test.name}")
    return found


def test_every_bug_is_on_a_commented_line() -> None:
    """What is wrong can be decided from the line itself, so that a reward model can judge a patch alone."""
    for instance in ALL["train"][:200] + ALL["test_ood"][:100]:
        lines = instance.patch.split("\n")
        removed = [i for i, line in enumerate(lines) if line.startswith("-") and not line.startswith("---")]
        assert len(removed) == instance.extra["num_bugs"]
        assert all("  # " in lines[i] for i in removed)


def test_every_kind_of_mutation_occurs_and_gives_code_that_compiles() -> None:
    seen: Counter[str] = Counter()
    for instance in ALL["train"][:300] + ALL["test_ood"][:50]:
        source = reference_source(instance)
        for mutation in mutations(source):
            seen[mutation.kind] += 1
            mutated = mutation.apply(source)
            compile(mutated, "mutant", "exec")
            assert mutated != source
    assert set(seen) == set(KINDS)


def test_the_corpus_of_the_base_model_uses_training_templates_only_and_mostly_fixes_nothing() -> None:
    """The base model must not have seen a test template, and must not have been taught which edit is right."""
    train_only = {t.id for t in all_templates() if split_of(t) == "train"}
    assert templates(ALL["train"]) <= train_only
    examples = list(islice(edits(3, fix_share=0.2), 400))
    others = {text for split in ("dev", "test", "test_ood") for i in ALL[split] for text in i.files.values()}
    assert not others & {text for e in examples for text in e.files.values()}
    again = list(islice(edits(3, fix_share=0.2), 400))
    assert examples == again
    fixes = list(islice(edits(3, fix_share=1.0), 400))
    right = {e.files[next(iter(e.files))]: e.patch for e in fixes}
    share = sum(right.get(next(iter(e.files.values()))) == e.patch for e in examples) / len(examples)
    assert share < 0.5


def test_reviews_call_an_edit_a_fix_only_if_it_makes_its_line_do_what_the_comment_says() -> None:
    """A wrong verdict in the corpus would teach every reward model that starts from the base the wrong thing."""
    found = list(islice(reviews(3), 300))
    assert found == list(islice(reviews(3), 300)) and found[:40] != list(islice(reviews(3, "dev"), 40))
    comment = re.compile(r"^[+-] +(.*?)  # (.*)$")
    right: dict[str, set[str]] = defaultdict(set)
    wrong: dict[str, set[str]] = defaultdict(set)
    changed = []
    for text, verdicts in found:
        assert parse_patch(text).format == "valid"
        lines = text.splitlines()
        removed = [m for line in lines[2:] if line[0] == "-" and (m := comment.match(line))]
        added = [m for line in lines[2:] if line[0] == "+" and (m := comment.match(line))]
        assert len(removed) == len(added) == len(verdicts)
        for old, new, fixes in zip(removed, added, verdicts, strict=True):
            assert old[2] == new[2]
            assert not (fixes and old[1] == new[1])
            (right if fixes else wrong)[new[2]].add(new[1])
            changed.append((old[1] != new[1], fixes))
    # The same statement behind the same comment is judged alike. (An edit that changes nothing may leave a good line.)
    both = {comment: right[comment] & wrong[comment] for comment in right}
    unchanged = sum(not different for different, _ in changed)
    assert sum(map(len, both.values())) <= unchanged
    fixes = sum(fixes for _, fixes in changed) / len(changed)
    assert 0.4 < fixes < 0.65 and unchanged


def test_bugs_that_cancel_each_other_make_no_instance() -> None:
    """Every shipped instance has a test that fails: otherwise there is nothing to repair and anything resolves it."""
    assert all(instance.FAIL_TO_PASS for instances in ALL.values() for instance in instances)


def test_command_writes_a_set_that_loads_and_refuses_bad_arguments(tmp_path, capsys) -> None:
    out = tmp_path / "sub" / "fresh.jsonl"
    assert main(["--split", "test", "--seed", "7", "--count", "5", "--out", str(out)]) == 0
    assert load_instances(out) == list(generate("test", 7, 5))
    with pytest.raises(SystemExit):
        main(["--split", "test", "--count", "5"])
    assert "--seed, --out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="choose one of"):
        load_split("nope")
