"""Every prompt in one place.

A prompt is a list of chat messages; the tokenizer's chat template turns it into ids. Two styles (section 3.1, B.1):
"trace" asks for the four-part reasoning trace and then the patch (Stage I demonstrations); "patch" asks for the patch
alone (Stages II and III, and evaluation). Two templates: "full" instructs a general model; "compact" is for models that
know nothing but this task, whose context is a few hundred tokens.
"""

from __future__ import annotations

from typing import Protocol

PROMPT_VERSION = 1  # goes up with any change of the texts below; stored beside every result
STYLES = ("patch", "trace")
TEMPLATES = ("compact", "full")
TRACE_SECTIONS = ("Bug Analysis", "Root Cause Identification", "Fix Strategy", "Implementation")

Message = dict[str, str]

_FULL_TASK = {
    "diff": "Fix the bug with a unified diff against the files below. It must apply with `git apply` as it stands.",
    "code": "Fix the bug. Give the complete corrected contents of {target}, and no diff.",
}
_FULL_PATCH = "Answer with the {answer} alone: no explanation, no code fence."
_FULL_TRACE = (
    "First reason in four parts, each under its heading: "
    + ", ".join(f"({i}) {name}" for i, name in enumerate(TRACE_SECTIONS, 1))
    + ". Then give the {answer} alone, without a code fence."
)


class PromptSource(Protocol):
    """What a prompt is made from; `BugInstance` has it."""

    @property
    def repo(self) -> str: ...
    @property
    def problem_statement(self) -> str: ...
    @property
    def files(self) -> dict[str, str]: ...
    @property
    def output_mode(self) -> str: ...
    @property
    def target(self) -> str | None: ...


def repair_messages(instance: PromptSource, style: str, template: str) -> list[Message]:
    """Chat messages that ask for a repair of `instance`.

    Raises ValueError for an unknown style or template.
    """
    if style not in STYLES:
        raise ValueError(f"unknown prompt style {style!r}; choose one of {', '.join(STYLES)}")
    if template == "compact":
        return [{"role": "user", "content": _compact(instance, style)}]
    if template == "full":
        return [
            {"role": "system", "content": _system(instance, style)},
            {"role": "user", "content": _context(instance)},
        ]
    raise ValueError(f"unknown prompt template {template!r}; choose one of {', '.join(TEMPLATES)}")


def _compact(instance: PromptSource, style: str) -> str:
    files = "\n".join(f"{path}\n{text}" for path, text in instance.files.items())
    head = "Explain. " if style == "trace" else ""
    return f"{head}{instance.problem_statement}\n{files}"


def _system(instance: PromptSource, style: str) -> str:
    task = _FULL_TASK[instance.output_mode].format(target=instance.target)
    answer = "diff" if instance.output_mode == "diff" else "code"
    return f"You repair programs. {task} " + (_FULL_TRACE if style == "trace" else _FULL_PATCH).format(answer=answer)


def _context(instance: PromptSource) -> str:
    files = "\n".join(f"### {path}\n```\n{text}```" for path, text in instance.files.items())
    return f"Repository: {instance.repo}\n\nIssue:\n{instance.problem_statement}\n\nFiles:\n{files}"


def trace_text(analysis: str, cause: str, strategy: str, implementation: str) -> str:
    """The four-part trace of B.1, as it stands before the patch in a "trace" response."""
    parts = zip(TRACE_SECTIONS, (analysis, cause, strategy, implementation), strict=True)
    return "".join(f"{name}: {text}\n" for name, text in parts) + "\n"
