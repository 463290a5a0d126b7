"""What reading, crediting and applying patches costs, each against its rival, in one process on the same bytes.

    python bench/patches.py [--quick]

Times are CPU seconds of this process (for applying: wall seconds, as git is another process), medians over repeats. The
corpus is the history of this repository, one diff per file and commit, and generated edits of its sources.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import unidiff

from boostapr.credit import CreditSettings, Rollout, batch_token_rewards
from boostapr.patches import PatchFormat, apply_patch, parse_patch

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
PIECE = re.compile(rb" ?[A-Za-z_]{1,6}|\d| ?[^\sA-Za-z_\d]{1,3}|\s{1,8}|.", re.S)


def history() -> list[bytes]:
    """One diff per file and commit of this repository."""
    log = subprocess.run(["git", "log", "-p", "--format=%x00"], cwd=ROOT, capture_output=True, check=True).stdout
    diffs = []
    for commit in log.split(b"\0"):
        for section in re.split(rb"(?m)^(?=diff --git )", commit):
            if section.startswith(b"diff --git "):
                diffs.append(section.rstrip(b"\n") + b"\n")
    return [diff for diff in diffs if parse_patch(diff).format is PatchFormat.VALID and len(diff) < 1 << 20]


def generated(count: int, rng: Random) -> list[bytes]:
    """Diffs of one to four hunks with three lines of context, out of the sources of this repository."""
    sources = [path.read_bytes().splitlines(keepends=True) for path in sorted(ROOT.glob("boostapr/**/*.py"))]
    sources = [lines for lines in sources if len(lines) > 80]
    return [edit(rng.choice(sources), rng) for _ in range(count)]


def edit(lines: Sequence[bytes], rng: Random) -> bytes:
    parts, start, shift = [b"--- a/src/module.py\n+++ b/src/module.py\n"], rng.randint(0, 20), 0
    for _ in range(rng.randint(1, 4)):
        removed = rng.randint(0, 3)
        added = [rng.choice(lines) for _ in range(rng.randint(0 if removed else 1, 4))]
        if start + removed + 6 > len(lines):
            break
        size = removed + 6
        parts.append(b"@@ -%d,%d +%d,%d @@\n" % (start + 1, size, start + 1 + shift, size - removed + len(added)))
        parts += [b" " + line for line in lines[start : start + 3]]
        parts += [b"-" + line for line in lines[start + 3 : start + 3 + removed]]
        parts += [b"+" + line for line in added]
        parts += [b" " + line for line in lines[start + 3 + removed : start + size]]
        start += size + rng.randint(1, 20)
        shift += len(added) - removed
    return b"".join(parts)


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def each(function: Callable[[bytes], object], items: Iterable[bytes]) -> Callable[[], None]:
    def run() -> None:
        for item in items:
            function(item)

    return run


def report(name: str, ratio: float, target: str, good: bool, detail: str) -> None:
    print(f"  {name:44} {ratio:6.2f}x   target {target:7} {'ok' if good else 'MISSED':6} {detail}", flush=True)


def against_unidiff(name: str, diffs: Sequence[bytes], repeats: int) -> None:
    """Throughput of parse_patch over that of unidiff.PatchSet, which gets its text decoded already."""
    texts = [diff.decode("utf-8", "replace") for diff in diffs]
    size = sum(map(len, diffs))
    pairs = [
        (cpu(each(parse_patch, diffs)), cpu(lambda: [unidiff.PatchSet(text) for text in texts])) for _ in range(repeats)
    ]
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    ours = statistics.median(pair[0] for pair in pairs)
    report(f"parse_patch, {name}", ratio, ">= 4x", ratio >= 4, f"{size / ours / 1e6:.0f} MB/s, {len(diffs)} diffs")


def rewards_against_parsing(name: str, diffs: Sequence[bytes], repeats: int) -> None:
    """From text and tokens to token rewards, in batches, over parsing alone."""
    penalty = dict.fromkeys(PatchFormat, 0.0)
    settings = CreditSettings(algorithm="boostapr", tau=0.5, granularity="edit_line", format_penalty=penalty)
    rollouts = []
    vocabulary: dict[bytes, bytes] = {}  # a token is one object wherever it stands, as token_bytes has it
    for diff in diffs:
        tokens = [vocabulary.setdefault(piece, piece) for piece in PIECE.findall(diff)]
        scores = np.linspace(-1, 1, parse_patch(diff).num_spans).tolist()
        rollouts.append(Rollout(diff, tokens, np.ones(len(tokens), dtype=bool), None, 1.0, scores))
    batches = [rollouts[i : i + BATCH] for i in range(0, len(rollouts), BATCH)]
    ratios = []
    for _ in range(repeats):
        alone = cpu(each(parse_patch, diffs))
        ratios.append(cpu(lambda: [batch_token_rewards(batch, settings) for batch in batches]) / alone)
    ratio = statistics.median(ratios)
    mean = sum(len(r.tokens) for r in rollouts) / len(rollouts)
    report(
        f"token rewards over parsing, {name}", ratio, "<= 2x", ratio <= 2, f"batches of {BATCH}, {mean:.0f} tokens each"
    )


HUNK = b"@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
HEAD = b"--- a/x\n+++ b/x\n"
ADVERSARIAL: dict[str, Callable[[int], bytes]] = {
    "hunk headers only": lambda n: HEAD + b"@@ -1,2 +1,2 @@\n" * (n // 16),
    "tiny hunks": lambda n: HEAD + b"@@ -1 +1 @@\n-\n+\n" * (n // 16),
    "one long line": lambda n: HEAD + b"@@ -1 +1 @@\n-a\n+" + b"x" * n + b"\n",
    "one long header": lambda n: b"diff --git " + b"a/x " * (n // 4) + b"\nold mode 100644\n",
    "alternating headers": lambda n: HEAD * (n // 16),
    "file sections": lambda n: b"".join(b"--- a/%d\n+++ b/%d\n@@ -1 +1 @@\n-a\n+b\n" % (i, i) for i in range(n // 40)),
    "fences": lambda n: b"```\n" * (n // 8) + HEAD + HUNK + b"```\n" * (n // 8),
    "wrong counts": lambda n: HEAD + HUNK.replace(b"2 @@", b"9 @@") * (n // 26),
    "one hunk, many spans": lambda n: HEAD + b"@@ -1,%d +1,%d @@\n" % (n // 5, n // 5 * 2) + b" \n+b\n" * (n // 5),
    "crlf": lambda n: (HEAD + HUNK * (n // 30)).replace(b"\n", b"\r\n"),
    "prose with rules": lambda n: b"--- \n" * (n // 5),
    "blank lines": lambda n: HEAD + HUNK + b"\n" * n,
    "undercounted": lambda n: HEAD + b"@@ -1 +0,0 @@\n" + b"-a\n" * (n // 3),
}


def growth(name: str, make: Callable[[int], bytes], size: int) -> None:
    """Time at twice the size over time at the size, and peak memory over input at the larger one."""
    small, large = make(size), make(2 * size)
    times = [min(cpu(lambda d=data: parse_patch(d)) for _ in range(3)) for data in (small, large)]
    tracemalloc.start()
    patch = parse_patch(large)
    memory = tracemalloc.get_traced_memory()[1] / len(large)
    tracemalloc.stop()
    ratio = times[1] / max(times[0], 1e-9)
    quick = times[1] < 0.02
    detail = f"{times[1]:5.2f} s for {len(large) / 1e6:.0f} MB, memory {memory:.1f}x, {patch.format}"
    report(f"doubling: {name}", ratio, "<= 2.3x", (ratio <= 2.3 or quick) and memory <= 10, detail)


def applying(diff_count: int) -> None:
    """apply_patch over a bare `git apply` of the same patch, file put back in between."""
    lines = [b"line %d\n" % i for i in range(300)]
    rng = Random(1)
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "src" / "module.py"
        target.parent.mkdir()
        for _ in range(diff_count):
            diff = edit(lines, rng)
            target.write_bytes(b"".join(lines))
            start = time.perf_counter()
            result = apply_patch(Path(folder), diff)
            ours.append(time.perf_counter() - start)
            assert result.applied, result.error
            target.write_bytes(b"".join(lines))
            start = time.perf_counter()
            subprocess.run(["git", "apply", "-"], input=diff, cwd=folder, capture_output=True, check=True)
            bare.append(time.perf_counter() - start)
    ratio = statistics.median(ours) / statistics.median(bare)
    report(
        "apply_patch over a bare git apply", ratio, "<= 1.3x", ratio <= 1.3, f"{statistics.median(ours) * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer repeats")
    quick = parser.parse_args().quick
    repeats, count, size = (3, 1500, 1 << 20) if quick else (7, 3000, 1 << 23)
    corpora = {"generated": generated(count, Random(0)), "history": history()}
    for name, diffs in corpora.items():
        against_unidiff(name, diffs, repeats)
    for name, diffs in corpora.items():
        rewards_against_parsing(name, diffs, repeats)
    for name, make in ADVERSARIAL.items():
        growth(name, make, size)
    applying(60 if quick else 200)


if __name__ == "__main__":
    main()
