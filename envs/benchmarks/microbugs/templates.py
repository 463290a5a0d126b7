"""Function templates of the microbugs set.

A template is one small Python function whose every statement that can carry a bug has a comment behind it that states
the intent. The bug contradicts the comment, so what is wrong can be decided from the line itself: by a policy that has to
find it, and by a reward model that sees the patch alone. (In `body` a comment stands above its statement, which is easier
to read; `fill` moves it behind.)

Templates are grouped in families. Training, dev and test divide the templates of the ordinary families between them
(`split_of`); the out-of-distribution families (`families.OOD_FAMILIES`) are never seen in training.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass
from functools import cache

from envs.benchmarks.microbugs.families import Template, families

# Placeholders in templates -> pools of names. Every name is a common word, so that a small vocabulary holds it whole.
NAMES: dict[str, list[str]] = {
    "xs": ["items", "values", "nums", "data", "scores", "points", "sizes", "rows"],
    "ys": ["others", "weights", "prices", "levels", "marks", "costs"],
    "k": ["limit", "bound", "base", "step", "floor", "level"],
    "n": ["size", "count", "width", "depth", "rate"],
    "m": ["scale", "shift", "bonus", "extra"],
    "acc": ["total", "result", "amount", "found"],
    "res": ["out", "kept", "picked", "group"],
    "x": ["x", "v", "item", "value"],
    "y": ["y", "w", "other"],
    "i": ["i", "j", "pos"],
    "s": ["text", "word", "name", "line"],
    "t": ["mark", "label", "part", "key"],
}
VERBS = ["get", "find", "calc", "make", "pick", "scan", "take", "read"]
NOUNS = ["sum", "list", "rank", "share", "part", "gap", "load", "cost", "span", "unit", "plan", "tax"]
MODULES = ["stats", "tools", "utils", "core", "calc", "report", "store", "shop", "metrics", "helpers"]


@dataclass(frozen=True)
class Function:
    """A template with names and constants filled in."""

    template: Template
    name: str
    source: str


@cache
def all_templates() -> tuple[Template, ...]:
    templates = tuple(families())
    assert len({t.id for t in templates}) == len(templates), "template ids must be unique"
    return templates


def split_of(template: Template) -> str:
    """train, dev, test or test_ood. By a hash of the template's id, so that adding templates moves none of the others."""
    if template.out_of_distribution:
        return "test_ood"
    bucket = int(hashlib.sha256(template.id.encode()).hexdigest(), 16) % 100
    return "train" if bucket < 70 else "dev" if bucket < 80 else "test"


@cache
def templates_of(split: str) -> tuple[Template, ...]:
    return tuple(t for t in all_templates() if split_of(t) == split)


def fill(template: Template, rng: random.Random, taken_names: set[str]) -> Function:
    """Choose names, constants and ways to say things; `taken_names` are the module's function names so far."""
    values = {key: rng.choice(pool) for key, pool in NAMES.items()}
    values["c"] = str(rng.randint(2, 9))
    while (name := f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}") in taken_names:
        pass
    body = template.body
    while "[" in body and "|" in body:  # "[a|b]" in a comment: one of the two
        start = _choice_start(body)
        if start < 0:
            break
        end = body.index("]", start)
        body = body[:start] + rng.choice(body[start + 1 : end].split("|")) + body[end + 1 :]
    for key, value in values.items():
        body = body.replace("{" + key + "}", value)
    body = re.sub(r"^ *(# .*)\n(.*)$", r"\2  \1", body, flags=re.MULTILINE)
    signature = f"def {name}({', '.join(values[p] for p in template.params)}):\n"
    return Function(template, name, signature + "".join(f"    {line}\n" for line in body.split("\n")))


def _choice_start(body: str) -> int:
    """Index of the next "[a|b]" choice (brackets of Python code hold no "|"), or -1."""
    at = body.find("[")
    while at >= 0:
        end = body.find("]", at)
        if "|" in body[at:end] and "\n" not in body[at:end]:
            return at
        at = body.find("[", at + 1)
    return -1


def sample_arguments(template: Template, rng: random.Random) -> list[object]:
    """Arguments for one call. Small numbers, so that boundaries are met often."""
    arguments: list[object] = []
    for kind in template.types:
        if kind == "L":
            arguments.append([rng.randint(-2, 7) for _ in range(rng.randint(3, 6))])
        elif kind == "I":
            arguments.append(rng.randint(-2, 7))
        elif kind == "P":
            arguments.append(rng.randint(0, 4))
        else:
            arguments.append("".join(rng.choice("abcABC") for _ in range(rng.randint(1, 4))))
    return arguments
