"""Reading costs time and memory in proportion to the input, whatever the input (issue 3, point 6; full sizes in bench/)."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from boostapr.patches import parse_patch

HEAD = b"--- a/x\n+++ b/x\n"
INPUTS = {
    "hunk headers": lambda n: HEAD + b"@@ -1,2 +1,2 @@\n" * (n // 16),
    "tiny hunks": lambda n: HEAD + b"@@ -1 +1 @@\n-\n+\n" * (n // 16),
    "long header": lambda n: b"diff --git " + b"a/x " * (n // 4) + b"\nold mode 100644\n",
    "alternating headers": lambda n: HEAD * (n // 16),
    "fences": lambda n: b"```\n" * (n // 4) + HEAD + b"@@ -1 +1 @@\n-a\n+b\n",
    "wrong counts": lambda n: HEAD + b"@@ -1,2 +1,9 @@\n a\n-b\n+c\n" * (n // 26),
    "many spans": lambda n: HEAD + b"@@ -1,%d +1,%d @@\n" % (n // 5, n // 5 * 2) + b" \n+b\n" * (n // 5),
    "prose": lambda n: b"--- \n" * (n // 5),
}


@pytest.mark.parametrize("name", INPUTS)
def test_cost_grows_with_the_input_only(name: str) -> None:
    """Four times the input: far from sixteen times the time; memory at most ten times the input."""
    small, large = INPUTS[name](1 << 15), INPUTS[name](1 << 17)
    times = []
    for data in (small, large):
        start = time.process_time()
        parse_patch(data)
        times.append(time.process_time() - start)
    assert times[1] < 8 * times[0] + 0.1
    tracemalloc.start()
    parse_patch(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(large) + 400_000  # buffers of constant size
