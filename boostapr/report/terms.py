"""Words of the report: what each system, status and format class is, said once for a reader new to the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SYSTEMS = {
    "base": ("Base", "the model before any of our training"),
    "sft": ("SFT", "base, fine-tuned on demonstrations whose patches passed every test"),
    "rerank": ("SFT + rerank", "SFT answers several times and the learned patch scorer R_seq picks one"),
    "ppo_r_seq": ("PPO + R_seq", "SFT, then reinforcement learning with one score per patch"),
    "boostapr": ("BoostAPR", "SFT, then reinforcement learning with the score spread over the edited lines by R_line"),
    "gold": ("Reference patches", "a check of the benchmark: every bug must be solved"),
    "noop": ("No change", "a check of the benchmark: no bug may be solved"),
}

STATUSES = {
    "resolved": "every required test passed",
    "tests_failed": "applied, but a required test failed",
    "apply_failed": "git could not apply the patch",
    "compile_failed": "the patched program does not compile",
    "collect_failed": "the tests could not be loaded",
    "timeout": "the tests ran over their time limit",
    "out_of_memory": "the tests ran over their memory limit",
    "format": "no usable answer",
    "policy_degraded": "the model repeated itself or ran out of room",
    "infra": "our sandbox failed, not the patch; counted as unresolved",
    "spoofed": "the program printed results it did not earn",
}

FORMATS = {
    "valid": "only a diff, and git accepts it as it is",
    "recoverable": "a listed repair would make it valid (prose around it, wrong line counts ...)",
    "malformed": "has diff markers but cannot be repaired",
    "not_a_diff": "no diff in it",
}

GLOSSARY = {
    "pass@1": "share of bugs solved by the first, most likely answer (greedy decoding); no second try, no clean-up of the answer",
    "pass@4": "share of bugs solved by at least one of four answers drawn at random (temperature 0.2, top-p 0.95)",
    "solved": "the raw answer is a patch that git applies, and every required test passes when really run",
    "95% interval": "the range that the number would plausibly fall in had other bugs of the same kind been drawn: Wilson's interval "
    "for a single share; for differences a bootstrap over bugs (10,000 resamples) that keeps the two answers to a bug together",
    "p": "exact two-sided McNemar test: how often chance alone would split the changed bugs as unevenly as this; "
    "small values (below 0.05) speak against chance",
    "test, test_ood": "two sets of bugs never trained on; test_ood (out of distribution) has kinds of programs and of bugs that "
    "training never showed",
    "SFT": "supervised fine-tuning: learning to imitate demonstrations",
    "PPO": "proximal policy optimisation, the reinforcement-learning step: the model answers, gets a reward, and is moved a little "
    "towards what was rewarded",
    "R_seq": "a learned scorer that reads a patch alone and says how good it is as a whole (the paper's Eq. 4)",
    "R_line": "a learned scorer of the edited places of a patch; it decides how the patch's score is shared out (Eq. 5 and 6)",
    "span": "an unbroken run of added and removed lines in a patch: the unit that credit goes to",
    "KL": "how far the model's answers have moved from the SFT model's (0 = not at all); its coefficient is the price per unit of that, "
    "adjusted during training to hold the distance near a target",
    "dev": "a third set of bugs, used to follow training and to choose settings; the test sets are never used for that",
}  # fmt: skip

MODELS = {"r_seq": "R_seq", "r_line": "R_line"}

# What the paper reports (Table 3 and Table 1), in percent: never ours, shown only for orientation.
PAPER_SYSTEMS = {
    "base": (17.8, 20.2, 11.3),
    "sft": (23.4, 25.7, 14.9),
    "rerank": (26.1, 28.3, None),
    "ppo_r_seq": (38.3, 40.1, 19.2),
    "boostapr": (40.7, 44.3, 24.8),
}


def system_name(system: str) -> str:
    return SYSTEMS.get(system, (system, ""))[0]


def pair(comparison: Mapping[str, Any]) -> str:
    return f"{system_name(comparison['system'])} − {system_name(comparison['baseline'])}"


def percent(value: float | None, digits: int = 1) -> str:
    return "n/a" if value is None else f"{100 * value:.{digits}f}%"


def points(value: float | None) -> str:
    """A signed difference of two shares in percentage points, with a true minus sign."""
    text = "n/a" if value is None else f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def p_value(p: float | None) -> str:
    return "n/a" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "n/a"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def verdict(comparison: Mapping[str, Any]) -> str:
    """One sentence about a comparison that claims no more than its interval allows."""
    system, baseline = system_name(comparison["system"]), system_name(comparison["baseline"])
    if comparison["difference"] is None:
        return f"{system} against {baseline}: not compared ({comparison.get('reason', 'incomplete')})."
    low, high = comparison["ci95"]
    said = f"{points(comparison['difference'])} points, 95% interval {points(low)} to {points(high)}"
    if low > 0:
        return f"{system} solves more bugs than {baseline} ({said})."
    if high < 0:
        return f"{system} solves fewer bugs than {baseline} ({said})."
    return f"{system} and {baseline} cannot be told apart on these bugs ({said})."
