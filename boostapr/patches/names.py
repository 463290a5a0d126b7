"""File names in diff headers, read exactly as git's apply.c (2.39) reads them.

git's rules are odd in places (the name after `---` ends at a tab, or at a time stamp that looks right; a name is stripped
of leading components before it is known to be one). They are followed to the letter, since the paths decide which file an
edit belongs to.
"""

from __future__ import annotations

import re

_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11, b"\\": 92, b'"': 34}
_QUOTED = re.compile(rb'"((?:[^"\\\n]|\\[abfnrtv"\\]|\\[0-3][0-7][0-7])*+)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7][0-7]|.)", re.S)
_TIMESTAMP = re.compile(
    rb"(?<=[\t ])(?:\d\d)?\d\d-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?(?: [-+]\d{4}| [-+]\d\d:\d\d)?\Z"
)
_NAME_END = re.compile(rb"[\t\r]")
_EPOCH = re.compile(rb"(1969-12-31|1970-01-01) ([0-2]\d):([0-5]\d):00(?:\.0+)? ([-+])([0-2]\d):?([0-5]\d)\Z")
_DEV_NULL = re.compile(rb"/dev/null[ \t\n\r]")
_DOTGIT = re.compile(rb"(?i)(?:\.git|git~1)[. ]*(?:[\\:].*)?\Z", re.S)

_PATH_MAX = 4096  # of Linux: a longer path cannot be opened
_NAME_MAX = 256
_ODD_PATH = re.compile(rb"//|(?:^|/)\.{0,2}(?:/|$)|(?i:\.git|git~1)|\\|\0")


def is_safe_path(path: bytes) -> bool:
    """Whether git would ever write to `path`: relative, no empty, `.` or `..` component, nothing that can mean `.git`."""
    if 0 < len(path) < _NAME_MAX and not _ODD_PATH.search(path):
        return True
    return (
        0 < len(path) < _PATH_MAX
        and b"\0" not in path
        and all(
            part not in (b"", b".", b"..") and len(part) < _NAME_MAX and not _DOTGIT.match(part)
            for part in path.split(b"/")
        )
    )


def unquote(text: bytes) -> tuple[bytes, int] | None:
    """Decode the C-quoted name at the start of `text`: (name, length of the quoted form), or None if it is not one."""
    found = _QUOTED.match(text)
    if found is None:
        return None

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) if len(code) == 3 else _ESCAPES[code]])

    return _ESCAPE.sub(byte, found[1]), found.end()


def quote(path: bytes) -> bytes:
    """The name as git writes it in a header: C-quoted if it has to be. Inverse of `unquote`."""
    names = {value: key for key, value in _ESCAPES.items()}
    if not any(c < 0x20 or c in (0x22, 0x5C) or c >= 0x7F for c in path):
        return path
    parts = (b"\\" + names[c] if c in names else b"\\%03o" % c if c < 0x20 or c >= 0x7F else bytes([c]) for c in path)
    return b'"' + b"".join(parts) + b'"'


def _squash(path: bytes) -> bytes:
    return re.sub(rb"/+", b"/", path)


def _strip(path: bytes, strip: int) -> bytes | None:
    """Drop `strip` leading components, or None if there are not that many."""
    for _ in range(strip):
        slash = path.find(b"/")
        if slash < 0:
            return None
        path = path[slash + 1 :]
    return path


def _skip_tree_prefix(strip: int, name: bytes) -> bytes | None:
    if name.startswith(b"/"):
        return None
    return _strip(name, strip)


def _stamp_start(text: bytes) -> int:
    """Where the time stamp of a plain diff's header begins (white space before it included), or len(text)."""
    found = _TIMESTAMP.search(text, max(len(text) - 100, 0))
    if found is None or found.start() == 0:
        return len(text)
    before = text[: found.start()]
    return len(before) - 1 if before.endswith(b"\t") else len(before.rstrip(b" "))


def _raw_name(text: bytes, traditional: bool, ends_at_tab: bool) -> bytes:
    """An unquoted name: up to the time stamp, a tab (where those end names) or a carriage return."""
    if traditional and (stop := _stamp_start(text)) < len(text):
        return text[:stop]
    found = _NAME_END.search(text) if ends_at_tab else None
    end = found.start() if found else text.find(b"\r")
    return text if end < 0 else text[:end]


def written_name(text: bytes, traditional: bool) -> bytes:
    """The name in `text` (what follows `--- `, without the newline) before any prefix is stripped."""
    if text.startswith(b'"') and (decoded := unquote(text)) is not None:
        return decoded[0]
    return _raw_name(text, traditional, True)


def find_name(
    text: bytes, strip: int, default: bytes | None = None, traditional: bool = False, ends_at_tab: bool = True
) -> bytes | None:
    """git's find_name: the name with `strip` components dropped, or `default` where that leaves nothing."""
    if text.startswith(b'"') and (decoded := unquote(text)) is not None:
        name = _strip(decoded[0], strip)
        if name is not None:
            return _squash(name)
    name = _strip(_raw_name(text, traditional, ends_at_tab), strip)
    if not name:
        return default
    if default is not None and len(default) < len(name) and name.startswith(default):
        return default
    return _squash(name)


def is_dev_null(text: bytes) -> bool:
    return _DEV_NULL.match(text + b"\n") is not None


def is_epoch(text: bytes) -> bool:
    """Whether the last tab of a `---` line is followed by the time 0, which GNU diff writes for a missing file."""
    tab = text.rfind(b"\t")
    found = _EPOCH.match(text, tab + 1) if tab >= 0 else None
    if found is None:
        return False
    zone = int(found[5]) * 60 + int(found[6])
    zone = -zone if found[4] == b"-" else zone
    return int(found[2]) * 60 + int(found[3]) - zone == (24 * 60 if found[1].startswith(b"1969") else 0)


def lacks_prefix(old: bytes | None, new: bytes | None, moved: bool = False) -> bool:
    """Whether a name has a directory that git would strip although it is no a/ or b/ prefix (None is /dev/null)."""
    if moved and old != new:
        return False
    if old is None or new is None:
        only = old if new is None else new
        return only is not None and b"/" in only and only.partition(b"/")[0] not in _PREFIXES
    if old == new:
        return b"/" in old and old.partition(b"/")[0] not in _PREFIXES
    return (old.startswith(b"a/") and old[2:] == new and b"/" in new) or (
        new.startswith(b"b/") and new[2:] == old and b"/" in old
    )


# a/ b/, and what diff.mnemonicPrefix writes.
_PREFIXES = (b"a", b"b", b"c", b"i", b"o", b"w", b"1", b"2")


def header_names(line: bytes) -> tuple[bytes, bytes] | None:
    """The two names of a `diff --git` line (without newline), prefixes and all, if the line can be split in one way."""
    text = line[len(b"diff --git ") :].rstrip(b"\r")
    if text.startswith(b'"'):
        first = unquote(text)
        if first is None:
            return None
        rest = text[first[1] :].lstrip(b" ")
        second = unquote(rest)
        return first[0], second[0] if second else rest
    quoted = text.find(b'"')
    if quoted > 0:
        second = unquote(text[quoted:])
        return (text[: quoted - 1], second[0]) if second else None
    half = len(text) // 2
    if text[half : half + 1] == b" " and len(text) % 2:
        old, new = text[:half], text[half + 1 :]
        if old == new or old.partition(b"/")[2] == new.partition(b"/")[2]:
            return old, new
    parts = text.split(b" ", 2)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def default_name(line: bytes, strip: int) -> bytes | None:
    """git's git_header_name: the name of a `diff --git` line if it stands there twice, else None."""
    text = line[len(b"diff --git ") :]
    if text.startswith(b'"'):
        first = unquote(text)
        name = _skip_tree_prefix(strip, first[0]) if first else None
        if first is None or name is None:
            return None
        rest = text[first[1] :].lstrip(b" \t\r")
        if rest.startswith(b'"'):
            second = unquote(rest)
            other = _skip_tree_prefix(strip, second[0]) if second else None
        else:
            other = _skip_tree_prefix(strip, rest)
        return name if other == name else None
    name = _skip_tree_prefix(strip, text)
    if name is None:
        return None
    quoted = name.find(b'"')
    if quoted >= 0:
        second = unquote(name[quoted:])
        other = _skip_tree_prefix(strip, second[0]) if second else None
        if other is None or not name[:quoted].startswith(other):
            return None
        return other if len(other) < quoted and name[len(other)] in b" \t\r" else None
    # The name, a separator, and the name again after its own prefix: as the gap moves right the second part gets
    # shorter, so one gap at most gives equal lengths.
    for gap in re.finditer(rb"[\t ]", name):
        begin = gap.end()
        if strip:
            slash = name.find(b"/", begin)
            if slash < 0:
                return None
            if slash == begin:
                continue
            begin = slash + 1
        elif name.startswith(b"/", begin):
            continue
        if len(name) - begin == gap.start():
            return name[: gap.start()] if name.endswith(name[: gap.start()]) else None
        if len(name) - begin < gap.start():
            return None
    return None
