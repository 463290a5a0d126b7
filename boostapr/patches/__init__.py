"""Bytes of a response -> Patch: unified diffs, SEARCH/REPLACE blocks, format class, edit-line spans, applying with git."""

from boostapr.patches.apply import ApplyResult, apply_patch
from boostapr.patches.model import REPAIR_TEXT, FileChange, Hunk, PatchFormat, Repair, Span
from boostapr.patches.parse import Patch, parse_patch, to_bytes

__all__ = [
    "REPAIR_TEXT",
    "ApplyResult",
    "FileChange",
    "Hunk",
    "Patch",
    "PatchFormat",
    "Repair",
    "Span",
    "apply_patch",
    "parse_patch",
    "to_bytes",
]
