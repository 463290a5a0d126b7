"""The whole method, Algorithm 1 of the paper, from a base model to a table of results.

    boostapr pipeline experiment=demo        # python -m stages.pipeline experiment=demo

Runs every stage of `stages/chain.py` that is not finished yet, each in a process of its own that can be started alone
with the same arguments (`boostapr sft experiment=demo`). Killed at any point, the same command continues. Ends with
the table, runs/<name>/summary.json and runs/<name>/report/index.html.
"""

from collections.abc import Sequence

from stages.chain import chain, console, drive, duration, launch, open_run
from stages.config import Config


def main(config: Config, overrides: Sequence[str]) -> int:
    """Run the chain, then report. Returns the exit code."""
    console.print(f"[bold]{config.name}[/] -> {config.runs / config.name}   ({' '.join(overrides) or 'defaults'})")

    # demonstrations -> sft (Stage I) -> candidates -> reward (Stage II) -> ppo (Stage III) -> evaluate
    code = drive(config, overrides, [stage.name for stage in chain(config)])
    if code != 0:
        return code

    from boostapr import report

    run = open_run(config, overrides)
    summary = report.build(run.folder)
    console.print(report.table(summary))
    total = sum(record["wall_s"] for stage in run.chain if (record := run.done(stage)))
    console.print(f"All stages together: {duration(total)}. Report: {run.folder / 'report' / 'index.html'}")
    return 0


if __name__ == "__main__":
    launch(main)
