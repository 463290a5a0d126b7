"""`boostapr microbugs --split test --seed 7 --count 300 --out fresh.jsonl`: a fresh set of microbugs.

With `--shipped` it writes the splits that the package ships (into the package, or into the folder given by --out).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from envs.benchmarks.microbugs import DATA, SHIPPED_COUNTS, SHIPPED_SEED
from envs.benchmarks.microbugs.generate import SPLITS, generate
from envs.tasks import to_json


def write_split(split: str, seed: int, count: int, path: Path) -> None:
    """Write `count` instances, one JSON object a line; the file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        for instance in tqdm(generate(split, seed, count), total=count, desc=f"microbugs {split}", unit="bug"):
            file.write(json.dumps(to_json(instance)) + "\n")
    partial.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="boostapr microbugs", description="Generate microbugs from a seed.")
    parser.add_argument("--split", choices=SPLITS, help="which templates and kinds of mutation to use")
    parser.add_argument("--seed", type=int, help="the same seed gives the same bytes")
    parser.add_argument("--count", type=int, help="number of instances")
    parser.add_argument("--out", type=Path, help="JSONL file to write (with --shipped: a folder)")
    parser.add_argument("--shipped", action="store_true", help="write the splits that the package ships")
    args = parser.parse_args(argv)
    if args.shipped:
        for split, count in SHIPPED_COUNTS.items():
            write_split(split, SHIPPED_SEED, count, (args.out or DATA) / f"{split}.jsonl")
        return 0
    missing = [f"--{name}" for name in ("split", "seed", "count", "out") if getattr(args, name) is None]
    if missing:
        parser.error(f"needs {', '.join(missing)} (or --shipped)")
    if args.count < 1:
        parser.error(f"--count must be 1 or more, is {args.count}")
    write_split(args.split, args.seed, args.count, args.out)
    print(f"{args.count} instances in {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
