"""Bytes of a response -> Patch: unified diffs, SEARCH/REPLACE blocks, format class, edit-line spans, applying with git."""

from boostapr.patches.apply import ApplyResult, apply_patch
from boostapr.patches.blocks import Block, BlockSyntaxError, SearchReplaceError, parse_blocks
from boostapr.patches.model import REPAIR_TEXT, FileChange, Hunk, PatchFormat, Repair, Span
from boostapr.patches.parse import Patch, parse_patch, to_bytes
from boostapr.patches.search_replace import AmbiguousMatch, Edited, NoMatch, Tolerance, apply_blocks, to_diff
from boostapr.patches.write import file_diff

__all__ = [
    "REPAIR_TEXT",
    "AmbiguousMatch",
    "ApplyResult",
    "Block",
    "BlockSyntaxError",
    "Edited",
    "FileChange",
    "Hunk",
    "NoMatch",
    "Patch",
    "PatchFormat",
    "Repair",
    "SearchReplaceError",
    "Span",
    "Tolerance",
    "apply_blocks",
    "apply_patch",
    "file_diff",
    "parse_blocks",
    "parse_patch",
    "to_bytes",
    "to_diff",
]
