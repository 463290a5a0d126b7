"""Figures as inline SVG that follow the page: colours are CSS variables (light, dark, print), text is text.

matplotlib draws; every colour that it is given is a placeholder, replaced by `var(--name)` afterwards.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from boostapr.analyses import Group
from boostapr.report import terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Names of CSS variables of style.css; the hex values exist between matplotlib and the page only.
_NAMES: tuple[str, ...] = (
    "fg",
    "muted",
    "grid",
    "base",
    "sft",
    "rerank",
    "ppo_r_seq",
    "boostapr",
    "other-1",
    "other-2",
    "other-3",
    "pos",
    "neg",
)
_NAMES += tuple(f"status-{s.replace('_', '-')}" for s in (*terms.STATUSES, "unknown"))
_PLACEHOLDER = {name: f"#ab{i:02x}cd" for i, name in enumerate(_NAMES)}
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")


@dataclass(frozen=True)
class Curve:
    """One panel: a title, what the reader sees in it, and (step, value) series by label. `target` is a dashed line; `noisy`
    series get their running mean of five steps."""

    title: str
    text: str
    series: Mapping[str, Sequence[tuple[int, float]]]
    percent: bool = False
    target: float | None = None
    noisy: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)


def scores(summary: Mapping[str, Any], split: str, measure: str = "pass@1") -> str:
    """Dot and 95% interval of a measure on one split, one row a system; the scale is the same for all splits."""
    names = list(reversed(summary["systems"]))
    top = max((e.get(f"{measure}_ci95", (0, 0))[1] for s in summary["systems"].values() for e in s.values()), default=0)
    with _figure(4.4, 0.8 + 0.42 * len(names)) as (figure, done):
        axes = figure.add_subplot()
        for y, system in enumerate(names):
            entry = summary["systems"][system].get(split)
            if entry is None or entry[measure] is None:
                axes.annotate(
                    "not complete" if entry else "not run", (0.01, y), color=_c("muted"), va="center", fontsize=8
                )
                continue
            marker = _MARKERS[(len(names) - 1 - y) % len(_MARKERS)]
            _dot(axes, y, entry[measure], entry[f"{measure}_ci95"], _c(colour(system)), marker)
            place: dict[str, Any] = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(terms.percent(entry[measure]), (entry[measure], y), **place)
        axes.set_title(f"{measure}, {split}", loc="left")
        axes.set_yticks(range(len(names)), [terms.system_name(s) for s in names])
        axes.set_ylim(-0.5, len(names) - 0.3)
        axes.set_xlim(0, min(1.02, top * 1.08 + 0.02))
        _percent_axis(axes.xaxis)
        return done(f"{summary['run']}: {measure} of each system on {split} with its 95% interval")


def differences(summary: Mapping[str, Any], split: str) -> str:
    """Differences of pass@1 on one split with their intervals around a zero line; the same scale for all splits."""
    comparisons = list(reversed(summary["comparisons"].values()))
    ends = [end for c in comparisons for e in c["splits"].values() for end in e["ci95"] or ()]
    low_end, high_end = min([0.0, *ends]), max([0.0, *ends])
    pad = 0.06 * (high_end - low_end) + 0.005
    with _figure(4.4, 0.8 + 0.36 * len(comparisons)) as (figure, done):
        axes = figure.add_subplot()
        for y, comparison in enumerate(comparisons):
            entry = comparison["splits"].get(split)
            if entry is None or entry["difference"] is None:
                axes.annotate("not compared", (0, y), color=_c("muted"), va="center", ha="center", fontsize=8)
                continue
            low, high = entry["ci95"]
            _dot(
                axes,
                y,
                entry["difference"],
                entry["ci95"],
                _c("pos" if low > 0 else "neg" if high < 0 else "muted"),
                "o",
            )
        axes.axvline(0, color=_c("fg"), linewidth=0.8)
        axes.set_title(f"points, {split}", loc="left")
        axes.set_yticks(range(len(comparisons)), [terms.pair(c) for c in comparisons])
        axes.set_ylim(-0.5, len(comparisons) - 0.5)
        axes.set_xlim(low_end - pad, high_end + pad)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:+.0f}".replace("-", "−") if abs(x) > 1e-9 else "0")
        return done(f"{summary['run']}: differences of pass@1 between pairs of systems on {split} with 95% intervals")


def curve(panel: Curve) -> str:
    """One panel; a long noisy series is drawn faint with its running mean of five steps on top."""
    from matplotlib.ticker import MaxNLocator

    with _figure(4.2, 2.5) as (figure, done):
        axes = figure.add_subplot()
        for i, (label, points) in enumerate(panel.series.items()):
            shade = _c(
                panel.colours.get(label, ("boostapr", "ppo_r_seq", "sft", "rerank", "other-1", "other-2")[i % 6])
            )
            steps, values = [p[0] for p in points], [p[1] for p in points]
            if panel.noisy and len(points) > 15:
                axes.plot(steps, values, color=shade, linewidth=0.8, alpha=0.35)
                smooth = [
                    sum(values[max(0, k - 4) : k + 1]) / len(values[max(0, k - 4) : k + 1]) for k in range(len(values))
                ]
                axes.plot(
                    steps, smooth, color=shade, linewidth=1.8, label=label, linestyle=("-", "--", ":", "-.")[i % 4]
                )
            else:
                marker = _MARKERS[i % 8] if len(points) <= 15 else ""
                axes.plot(steps, values, color=shade, linewidth=1.8, label=label, marker=marker, markersize=4)
        if panel.target is not None:
            axes.axhline(panel.target, color=_c("muted"), linewidth=1, linestyle="--")
            axes.annotate(
                "target",
                (1, panel.target),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                color=_c("muted"),
                fontsize=8,
            )
        if len(panel.series) > 1:
            axes.legend(frameon=False, fontsize=8, loc="best")
        if panel.percent:
            _percent_axis(axes.yaxis)
        axes.set_title(panel.title, loc="left")
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return done(f"{panel.title} by training step")


def outcomes(summary: Mapping[str, Any], split: str) -> str:
    """What became of the first answers: one bar a system, one colour a status, counts written into the parts."""
    systems = [s for s in reversed(summary["systems"]) if split in summary["systems"][s]]
    counts = {system: summary["systems"][system][split]["statuses"] for system in systems}
    total = max(summary["systems"][system][split]["n"] for system in systems)
    left = [0.0] * len(systems)
    with _figure(4.4, 1.3 + 0.34 * len(systems)) as (figure, done):
        axes = figure.add_subplot()
        for status in [s for s in (*terms.STATUSES, "unknown") if any(s in found for found in counts.values())]:
            widths = [counts[system].get(status, 0) for system in systems]
            shade = _c(f"status-{status.replace('_', '-')}")
            axes.barh(range(len(systems)), widths, left=left, height=0.66, color=shade, label=status.replace("_", " "))
            for y, width in enumerate(widths):
                if width >= 0.06 * total:
                    axes.annotate(
                        str(width), (left[y] + width / 2, y), ha="center", va="center", fontsize=8, color=_c("fg")
                    )
                left[y] += width
        axes.set_yticks(range(len(systems)), [terms.system_name(system) for system in systems])
        axes.set_xlabel(f"first answers on {split}")
        axes.set_xlim(0, total)
        axes.grid(False)
        _legend_above(axes, columns=3)
        return done(f"{summary['run']}: outcome of every first answer on {split}, by system")


def groups(rows: Sequence[Group], systems: Sequence[str], label: str) -> str:
    """Grouped bars of pass@1 by project, kind of bug or the like."""
    with _figure(7.6, 0.8 + 0.13 * len(rows) * (len(systems) + 1)) as (figure, done):
        axes = figure.add_subplot()
        height = 1 / (len(systems) + 1)
        for i, system in enumerate(systems):
            ys = [len(rows) - 1 - r + (len(systems) / 2 - i - 0.5) * height for r in range(len(rows))]
            values = [row.resolved.get(system, 0) / row.n for row in rows]
            axes.barh(ys, values, height=height * 0.85, color=_c(colour(system)), label=terms.system_name(system))
        axes.set_yticks(range(len(rows)), [f"{row.name} ({row.n})" for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        _percent_axis(axes.xaxis)
        axes.set_xlim(0, 1)
        _legend_above(axes)
        return done(f"pass@1 by {label}, for each system")


def colour(system: str) -> str:
    """CSS variable of a system; unknown ones share three more, chosen by name so that it never changes."""
    return system if system in terms.SYSTEMS else f"other-{sum(map(ord, system)) % 3 + 1}"


def _c(name: str) -> str:
    return _PLACEHOLDER[name]


def _dot(axes: Axes, y: float, value: float, ends: Sequence[float], shade: str, marker: str) -> None:
    axes.plot(list(ends), [y, y], color=shade, linewidth=2, solid_capstyle="butt")
    axes.plot([value], [y], color=shade, marker=marker, markersize=6)


def _legend_above(axes: Axes, columns: int = 5) -> None:
    axes.legend(
        frameon=False, fontsize=8, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1, handleheight=1, borderaxespad=0.2
    )  # fmt: skip


def _percent_axis(axis: Any) -> None:
    axis.set_major_formatter(lambda x, _: f"{100 * x:.0f}%")


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, Any]]:
    """A figure (inches) and the function that turns it into SVG text with a label for screen readers."""
    import matplotlib
    from matplotlib.figure import Figure as MplFigure  # not pyplot: no global state, no display

    look: Any = {
        "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9.5, "axes.titleweight": "bold", "text.color": _c("fg"),
        "axes.labelcolor": _c("muted"), "xtick.color": _c("muted"), "ytick.color": _c("muted"), "ytick.labelcolor": _c("fg"),
        "axes.edgecolor": _c("grid"), "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": _c("grid"), "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.labelcolor": _c("fg"),
        "figure.constrained_layout.use": True,
    }  # fmt: skip
    with matplotlib.rc_context({**look, "svg.hashsalt": f"{width}x{height}"}):
        figure = MplFigure(figsize=(width, height))

        def done(label: str) -> str:
            buffer = io.StringIO()
            figure.savefig(
                buffer,
                format="svg",
                transparent=True,
                metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
            )
            return _inline(buffer.getvalue(), label)

        yield figure, done


def _inline(svg: str, label: str) -> str:
    """matplotlib's file as an element of the page: no prolog, no namespaces, ids unique to it, colours by variable."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*" ', r"<svg \1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)  # it would style the whole page
    mark = f"f{zlib.crc32(label.encode()):x}"
    used = set(re.findall(r"#([^\s\")]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{mark}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{mark}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", svg)
    for name, hexa in _PLACEHOLDER.items():
        svg = svg.replace(hexa, f"var(--{name})")
    svg = re.sub(r"(font-family:|font: )([^;\"]*)", _font, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _font(match: re.Match[str]) -> str:
    """The page's font instead of matplotlib's, at matplotlib's size."""
    if match[1] == "font-family:":
        return "font-family: inherit"
    size = re.search(r"[\d.]+px", match[2])
    bold = "font-weight: bold; " if re.match(r"(bold|[6-9]00)\b", match[2]) else ""
    return f"{bold}font-size: {size[0] if size else '9px'}"
