"""File headers of a diff, read exactly as git's apply.c (2.39) reads them.

git's rules are odd in places (the name after `---` ends at a tab, a path with no slash switches off prefix stripping for
the rest of the input, an epoch time stamp means /dev/null). They are followed to the letter, since the paths decide which
file an edit belongs to; where git would accept a header that cannot apply to any tree, `HeaderError` is raised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TYPE_MASK = 0o170000
_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11, b"\\": 92, b'"': 34}
_QUOTED = re.compile(rb'"((?:[^"\\\n]|\\[abfnrtv"\\]|\\[0-3][0-7][0-7])*+)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7][0-7]|.)", re.S)
_TIMESTAMP = re.compile(
    rb"(?<=[\t ])(?:\d\d)?\d\d-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?(?: [-+]\d{4}| [-+]\d\d:\d\d)?\Z"
)
_NAME_END = re.compile(rb"[\t\r]")
_EPOCH = re.compile(rb"(1969-12-31|1970-01-01) ([0-2]\d):([0-5]\d):00(?:\.0+)? ([-+])([0-2]\d):?([0-5]\d)\Z")
_DEV_NULL = re.compile(rb"/dev/null[ \t\n\r]")
_MODE = re.compile(rb"[ \t]*([0-7]+)[ \t\n\r]")
_INDEX = re.compile(rb"[^.\n]{0,40}\.\.[^ \n]{0,40}( )?")
_DOTGIT = re.compile(rb"(?i)(?:\.git|git~1)[. ]*(?:[\\:].*)?\Z", re.S)

# The headers that nearly every diff has: one plain name, a/ and b/ prefixes. The look-ahead is a hunk.
_PLAIN = rb"(\w[\w.+-]*+(?:/\w[\w.+-]*+)*+)"
SIMPLE = re.compile(
    rb"(?:diff --git a/" + _PLAIN + rb" b/\1\n(?:index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: 100(?:644|755))?\n)?"
    rb"--- a/\1\n\+\+\+ b/\1\n|--- a/" + _PLAIN + rb"\n\+\+\+ b/\2\n)(?=@@ -)"
)
_PATH_MAX = 4096  # of Linux: a longer path cannot be opened
_ODD_PATH = re.compile(rb"//|(?:^|/)\.{0,2}(?:/|$)|(?i:\.git|git~1)|\\|\0")


class HeaderError(ValueError):
    """A file header that git refuses, or that no tree could ever satisfy."""


@dataclass(slots=True)
class Header:
    """A file header: names as git reads them (None is /dev/null), modes (0: unstated), and where its hunks begin."""

    end: int
    old: bytes | None = None
    new: bytes | None = None
    old_mode: int = 0
    new_mode: int = 0
    is_new: bool = False
    is_delete: bool = False
    is_rename: bool = False
    is_copy: bool = False
    is_git: bool = False
    oid: tuple[bytes, bytes] | None = None
    lacks_prefix: bool = False

    @property
    def changes_metadata(self) -> bool:
        modes = self.old_mode and self.new_mode and self.old_mode != self.new_mode
        return bool(self.is_new or self.is_delete or self.is_rename or self.is_copy or modes)


def is_safe_path(path: bytes) -> bool:
    """Whether git would ever write to `path`: relative, no empty, `.` or `..` component, nothing that can mean `.git`."""
    if not _ODD_PATH.search(path) and 0 < len(path) < _PATH_MAX:
        return True
    return (
        0 < len(path) < _PATH_MAX
        and b"\0" not in path
        and all(part not in (b"", b".", b"..") and not _DOTGIT.match(part) for part in path.split(b"/"))
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


def _find_name(
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


def _is_dev_null(text: bytes) -> bool:
    return _DEV_NULL.match(text + b"\n") is not None


def _is_epoch(text: bytes) -> bool:
    """Whether the last tab of a `---` line is followed by the time 0, which GNU diff writes for a missing file."""
    tab = text.rfind(b"\t")
    found = _EPOCH.match(text, tab + 1) if tab >= 0 else None
    if found is None:
        return False
    zone = int(found[5]) * 60 + int(found[6])
    zone = -zone if found[4] == b"-" else zone
    return int(found[2]) * 60 + int(found[3]) - zone == (24 * 60 if found[1].startswith(b"1969") else 0)


def _lacks_prefix(old: bytes | None, new: bytes | None, moved: bool = False) -> bool:
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


class Strip:
    """git's -p value. It starts at 1; the first plain diff whose names have no slash sets it to 0 for good."""

    __slots__ = ("known", "value")

    def __init__(self, value: int = 1, known: bool = False) -> None:
        self.value = value
        self.known = known

    def guess(self, first: bytes, second: bytes) -> None:
        if self.known:
            return
        values = []
        for text in (first, second):
            name = None if _is_dev_null(text) else _find_name(text, 0, traditional=True)
            values.append(-1 if name is None or b"/" in name else 0)
        if values[0] < 0:
            values[0] = values[1]
        if values[0] == values[1] == 0:
            self.value, self.known = 0, True


def read_traditional(data: bytes, start: int, strip: Strip) -> Header:
    """Read a `---`/`+++` pair at `start` that no `diff --git` line announces; updates `strip` as git does."""
    middle = data.index(b"\n", start) + 1
    end = data.index(b"\n", middle) + 1
    first, second = data[start + 4 : middle - 1], data[middle + 4 : end - 1]
    strip.guess(first, second)
    header = Header(end)
    nulls = _is_dev_null(first), _is_dev_null(second)
    if nulls[0]:
        header.is_new = True
        header.new = name = _find_name(second, strip.value, traditional=True)
    elif nulls[1]:
        header.is_delete = True
        header.old = name = _find_name(first, strip.value, traditional=True)
    else:
        default = _find_name(first, strip.value, traditional=True)
        name = _find_name(second, strip.value, default, traditional=True)
        header.is_new = _is_epoch(first)
        header.is_delete = not header.is_new and _is_epoch(second)
        header.old = None if header.is_new else name
        header.new = None if header.is_delete else name
    if name is None:
        raise HeaderError("no file name after --- and +++")
    if strip.value == 1:
        old, new = (
            None if null else written_name(text, True) for null, text in zip(nulls, (first, second), strict=True)
        )
        header.lacks_prefix = _lacks_prefix(old, new)
    _check(header)
    return header


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
    parts = text.split(b" ")
    return (parts[0], parts[1]) if len(parts) == 2 else None


_EXTENDED = (
    *(
        b"--- ",
        b"+++ ",
        b"old mode ",
        b"new mode ",
        b"deleted file mode ",
        b"new file mode ",
        b"copy from ",
        b"copy to ",
    ),
    *(b"rename old ", b"rename new ", b"rename from ", b"rename to ", b"similarity index ", b"dissimilarity index "),
    b"index ",
)


def header_extent(data: bytes, start: int) -> int:
    """Where the file header at `start` ends, to judge by the words that its lines begin with."""
    end = data.find(b"\n", start) + 1 or len(data)
    if not data.startswith(b"diff --git ", start):
        return data.find(b"\n", end) + 1 or len(data)
    while data.startswith(_EXTENDED, end):
        end = data.find(b"\n", end) + 1 or len(data)
    return end


def with_prefixes(header: bytes) -> bytes:
    """A file header with a/ and b/ before the names that lack them."""
    lines = header.split(b"\n")
    for i, line in enumerate(lines):
        if line.startswith(b"diff --git "):
            names = header_names(line)
            if names is not None:
                old, new = _prefixed(*names)
                lines[i] = b"diff --git " + quote(old) + b" " + quote(new)
    pair = [i for i, line in enumerate(lines) if line.startswith((b"--- ", b"+++ "))]
    texts = [lines[i][4:] for i in pair]
    if len(pair) == 2:
        nulls = [_is_dev_null(text) for text in texts]
        names = _prefixed(*(b"" if null else written_name(text, True) for null, text in zip(nulls, texts, strict=True)))
        for i, null, name in zip(pair, nulls, names, strict=True):
            if not null:
                lines[i] = lines[i][:4] + quote(name)
    return b"\n".join(lines)


def _prefixed(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    has_old = old.startswith(b"a/") and (not new or old[2:] in (new, new[2:]))
    has_new = new.startswith(b"b/") and (not old or new[2:] in (old, old[2:]))
    return old if has_old else b"a/" + old, new if has_new else b"b/" + new


def _default_name(line: bytes, strip: int) -> bytes | None:
    """git_header_name: the name of a `diff --git` line if it stands there twice, else None."""
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


def read_git(data: bytes, start: int, strip: Strip) -> Header:
    """Read a `diff --git` header at `start` with its extended lines; raises HeaderError where git does."""
    end = data.find(b"\n", start) + 1 or len(data)
    first_line = data[start : end - 1]
    default = _default_name(first_line, strip.value)
    header = Header(end, is_git=True)
    names: list[bytes | None] = []
    while True:
        stop = data.find(b"\n", header.end)
        if stop < 0:
            break
        line = data[header.end : stop]
        if not _extended_line(line, header, default, strip.value, names):
            break
        if header.is_new + header.is_delete + header.is_rename + header.is_copy > 1:
            raise HeaderError("a file cannot be new, deleted, renamed and copied at once")
        header.end = stop + 1
    if header.end == end:
        raise HeaderError("a diff --git line with nothing after it")
    if header.old is None and header.new is None:
        if default is None:
            raise HeaderError("the names on the diff --git line cannot be told apart or lack a/ and b/")
        header.old = header.new = default
    if (header.new is None and not header.is_delete) or (header.old is None and not header.is_new):
        raise HeaderError("the header names only one side of the change")
    if header.is_delete:
        header.new = None
    if header.is_new:
        header.old = None
    if strip.value == 1:
        pair = header_names(first_line)
        moved = header.is_rename or header.is_copy
        pairs = [pair, (names[0], names[1]) if len(names) == 2 else None]
        header.lacks_prefix = any(_lacks_prefix(*p, moved) for p in pairs if p is not None)
    _check(header)
    return header


def _extended_line(line: bytes, header: Header, default: bytes | None, strip: int, names: list[bytes | None]) -> bool:
    """Take one header line into `header`; False if it does not belong to a header."""
    if line.startswith(b"@@ -"):
        return False
    if line.startswith(b"--- "):
        header.old = _verify(line[4:], header.is_new, header.old, strip)
        names.append(None if _is_dev_null(line[4:]) else written_name(line[4:], False))
    elif line.startswith(b"+++ "):
        header.new = _verify(line[4:], header.is_delete, header.new, strip)
        names.append(None if _is_dev_null(line[4:]) else written_name(line[4:], False))
    elif line.startswith(b"old mode "):
        header.old_mode = _mode(line[9:])
    elif line.startswith(b"new mode "):
        header.new_mode = _mode(line[9:])
    elif line.startswith(b"deleted file mode "):
        header.is_delete, header.old, header.old_mode = True, default, _mode(line[18:])
    elif line.startswith(b"new file mode "):
        header.is_new, header.new, header.new_mode = True, default, _mode(line[14:])
    elif line.startswith((b"copy from ", b"copy to ", b"rename old ", b"rename new ", b"rename from ", b"rename to ")):
        words = line.split(b" ", 2)
        name = _find_name(words[2], max(strip - 1, 0), ends_at_tab=False)
        header.is_copy |= words[0] == b"copy"
        header.is_rename |= words[0] == b"rename"
        if words[1] in (b"from", b"old"):
            header.old = name
        else:
            header.new = name
    elif line.startswith(b"index "):
        found = _INDEX.match(line, 6)
        if found is not None:
            old, _, new = found[0].rstrip(b" ").partition(b"..")
            header.oid = (old, new)
            if found[1]:
                header.old_mode = _mode(line[found.end() :])
    else:
        return line.startswith((b"similarity index ", b"dissimilarity index "))
    return True


def _verify(text: bytes, is_null: bool, name: bytes | None, strip: int) -> bytes | None:
    if name is None and not is_null:
        return _find_name(text, strip)
    if name is not None:
        if is_null:
            raise HeaderError("a name where /dev/null is expected")
        if _find_name(text, strip) != name:
            raise HeaderError("the names in the file header disagree")
        return name
    if not _is_dev_null(text):
        raise HeaderError("expected /dev/null")
    return None


def _mode(text: bytes) -> int:
    found = _MODE.match(text + b"\n")
    if found is None:
        raise HeaderError("unreadable file mode")
    return int(found[1], 8) & 0xFFFFFFFF


def _check(header: Header) -> None:
    """Refuse what git parses but no tree can satisfy."""
    for path in (header.old, header.new):
        if path is not None and not is_safe_path(path):
            raise HeaderError(f"unsafe path {path.decode('utf-8', 'backslashreplace')!r}")
    if header.old_mode and header.new_mode and (header.old_mode ^ header.new_mode) & _TYPE_MASK:
        raise HeaderError("a file cannot become a link or the reverse in one section")
