"""The HTML page and its Markdown twin: self-contained, escaped, legible, and saying what the numbers say."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_runs import INFRA, R, T, demo_run, row, write_jsonl, write_results, write_stage

from boostapr import report
from boostapr.report import terms
from boostapr.report.curves import loss_curves, policy_curves, side_by_side
from boostapr.report.data import load_run

VOID = {"meta", "link", "br", "img", "hr", "input", "use"}
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Elements, their attributes and the text; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = demo_run(tmp_path_factory.mktemp("runs") / "demo")
    report.build(path)
    return path


@pytest.fixture(scope="module")
def html(demo: Path) -> str:
    return (demo / "report" / "index.html").read_text()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_well_formed(page: Page) -> None:
    assert page.open == []


def test_the_page_asks_nothing_of_any_other_place(html: str, page: Page) -> None:
    """Opened from a disk without network it must be whole: no asset, style, script, font or frame from elsewhere."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "audio", "video", "source", "base"}
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), f"<{tag} {name}={value}>"
    assert not re.search(r"url\((?!#)|@import|https?://", html)


def test_links_and_figure_parts_point_to_ids_that_exist_once(html: str, page: Page) -> None:
    """Several figures in one page: a repeated id would draw one figure's clip path in another."""
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    used = {str(a["href"])[1:] for _, a in page.elements if str(a.get("href", "")).startswith("#")}
    used |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert used <= set(ids)


def test_text_from_the_run_is_escaped(html: str) -> None:
    """An issue text with markup is shown as text."""
    assert "<b>&amp; nothing" not in html and "&lt;b&gt;&amp; nothing else&lt;/b&gt;" in html


def test_the_page_says_the_numbers(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert (
        "BoostAPR solves more bugs than SFT (+20.0 points, 95% interval +7.5 to +35.0). 40.0% → 60.0% of 40 test bugs."
        in text
    )
    assert "SFT + rerank and SFT cannot be told apart" in text
    for words in ("10 min 11 s", "torch 2.13.0+cpu", "pairwise accuracy 71.0% 82.4%", "0.745", "62 (62%)"):
        assert words in text, words
    assert "Solved by BoostAPR, not by SFT: 5 of 9 on test" in text
    assert "Solved by SFT, broken by BoostAPR: 1 of 1" in text
    assert "tests failed: 2 of 3 required tests passed" in text


def test_credit_is_said_in_numbers_and_colour(html: str) -> None:
    """Colour alone would exclude readers and printers: the margin has the number, and the shade follows the share."""
    assert re.search(
        r'class="l del credit opens" style="--a:0\.82"[^>]*><span class="g">\+0\.60</span><code>-    total = 1', html
    )
    assert '<span class="g">−0.30</span>' in html  # the broken one: -0.4 x 75%
    assert 'class="patch neg"' in html


def test_every_figure_has_words_for_those_who_cannot_see_it(page: Page) -> None:
    figures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(figures) >= 11
    assert all(a.get("role") == "img" and a.get("aria-label") for a in figures)
    assert len({a["aria-label"] for a in figures}) == len(figures)


def test_colours_follow_the_page(html: str) -> None:
    """No placeholder colour survives in a figure, and every variable that is used has a light and a dark value."""
    assert not re.search(r"#ab[0-9a-f]{2}cd", html)
    light, dark = _palettes()
    used = set(re.findall(r"var\(--([\w-]+)\)", html)) - {"a", "mono"}
    assert used <= set(light), used - set(light)
    assert used <= set(dark), used - set(dark)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough_to_read(mode: int) -> None:
    """WCAG 2 asks for 4.5:1: text on the page, on panels, on status bars, and on the strongest credit colour."""
    palette = _palettes()[mode]
    for ground in ("bg", "panel"):
        for ink in ("fg", "muted", "link"):
            assert _contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
    for name, colour in palette.items():
        if name.startswith("status-"):
            assert _contrast(palette["fg"], colour) >= 4.5, name
    for name in ("pos-rgb", "neg-rgb"):
        paint = [int(v) for v in palette[name].split()]
        mixed = [0.5 * p + 0.5 * g for p, g in zip(paint, _rgb(palette["bg"]), strict=True)]
        assert _contrast_rgb(_rgb(palette["fg"]), mixed) >= 4.5, name


def test_markdown_twin_has_the_same_numbers(demo: Path) -> None:
    text = (demo / "report" / "report.md").read_text()
    assert "| BoostAPR | test | 40 | 60.0% (44.6 to 73.7) | 70.0% (54.6 to 81.9) | 90.0% |" in text
    assert "| BoostAPR − SFT | test | +20.0 | +7.5 to +35.0 | 9 | 1 | 0.021 |" in text
    assert "+0.60  -    total = 1\n     |  +    total = 0" in text
    assert "<b>" not in text
    assert all(line.count("|") >= 3 for line in text.split("\n") if line.startswith("| "))


def test_curves_are_those_that_were_logged(demo: Path) -> None:
    """verl's metric names, our own, and the target from the resolved configuration."""
    panels = {panel.title: panel for panel in policy_curves(load_run(demo))}
    assert panels["Bugs solved on dev"].series == {"dev": [(s, 0.40 + 0.006 * s) for s in (0, 10, 20, 30)]}
    assert panels["KL per token"].target == 0.05
    assert panels["KL per token"].series["KL"][-1] == (30, pytest.approx(0.06))
    assert panels["Form of the answers"].series["no line credit"][0] == (1, pytest.approx(0.147))
    assert set(panels["Mean reward of the answers"].series) == {"as scored", "less the KL's price"}
    assert [p.title for p in loss_curves(load_run(demo))] == ["Loss: sft"]


def test_plain_verl_metrics_are_understood(tmp_path: Path) -> None:
    """A run by verl's own file logger: nested data, numbers as text, val-core names, reward where there is no accuracy."""
    write_results(tmp_path, "sft", "test", [R])
    rows = [
        {"step": s, "data": {"critic/score/mean": "0.5", "val-core/microbugs/reward/mean@1": 0.1 * s}} for s in (1, 2)
    ]
    write_jsonl(tmp_path / "ppo" / "metrics.jsonl", rows)
    panels = {panel.title: panel for panel in policy_curves(load_run(tmp_path))}
    assert panels["Reward on dev"].series == {"microbugs": [(1, 0.1), (2, 0.2)]}
    assert panels["Mean reward of the answers"].series["as scored"] == [(1, 0.5), (2, 0.5)]


def test_dev_answers_that_were_not_executed_give_no_curve(tmp_path: Path) -> None:
    """Without a verdict "resolved" is logged as 0; a flat line at 0% would be a false statement."""
    write_results(tmp_path, "sft", "test", [R])
    row_of = {"critic/score/mean": 0.5, "val/dev/resolved": 0.0, "val/dev/executed": 0.0}
    write_jsonl(tmp_path / "ppo" / "metrics.jsonl", [{"step": 1, **row_of}])
    assert [panel.title for panel in policy_curves(load_run(tmp_path))] == ["Mean reward of the answers"]


def test_a_run_with_nothing_but_results_still_gives_a_page(tmp_path: Path) -> None:
    """No instances, no metrics, no credit, an infra failure: sections are left out or say what is missing."""
    write_results(tmp_path, "sft", "test", [T, INFRA, T])
    write_results(tmp_path, "boostapr", "test", [R, T, T])
    write_stage(tmp_path / "sft", "sft", 5.0)
    report.build(tmp_path)
    text = " ".join(" ".join(Page((tmp_path / "report/index.html").read_text()).text).split())
    assert "No credit was stored with this answer" in text
    assert "The issue text was not stored with the results." in text
    assert "1 of 3 answers could not be graded (infra)" in text
    assert "How training went" not in text


def test_several_runs_stand_side_by_side_with_mean_and_deviation(tmp_path: Path) -> None:
    """Seeds 1 and 2: SFT 50% and 75%, BoostAPR 75% and 100%: means 62.5% and 87.5%, deviation 17.7, difference +25."""
    for name, sft, ours in (("one", [R, R, T, T], [R, R, R, T]), ("two", [R, R, R, T], [R, R, R, R])):
        write_results(tmp_path / name, "sft", "test", sft)
        write_results(tmp_path / name, "boostapr", "test", ours)
        steps = [{"step": s, "critic/score/mean": 0.1 * s, "critic/rewards/mean": 0.1} for s in (1, 2, 3)]
        write_jsonl(tmp_path / name / "ppo" / "metrics.jsonl", steps)
    summaries = report.build_many([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert [s["systems"]["sft"]["test"]["pass@1"] for s in summaries] == [0.5, 0.75]
    assert (tmp_path / "two" / "summary.json").exists()
    text = (tmp_path / "both" / "report.md").read_text()
    assert "| test | BoostAPR | 87.5% | 17.7 |  | 75.0, 100.0 |" in text
    assert "| test | BoostAPR − SFT | +25.0 | 0.0 |" in text
    page = Page((tmp_path / "both" / "index.html").read_text())
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    panels = side_by_side([load_run(tmp_path / "one"), load_run(tmp_path / "two")])
    assert [(p.title, list(p.series)) for p in panels] == [("Mean reward of the answers", ["one", "two"])]


def test_runs_on_different_bugs_are_not_averaged(tmp_path: Path) -> None:
    write_results(tmp_path / "one", "sft", "test", [R, R])
    write_jsonl(tmp_path / "two/eval/sft/test/results.jsonl", [row(5, R), row(6, R)])
    report.build_many([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert "not evaluated on the same bugs, so they are not averaged" in (tmp_path / "both" / "report.md").read_text()


def test_the_command_prints_the_table_and_where_the_report_is(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from boostapr.report.cli import main

    assert main([str(demo)]) == 0
    printed = capsys.readouterr().out
    assert "BoostAPR" in printed and "60.0%" in printed
    assert str(demo / "report" / "index.html") in printed.replace("\n", "")


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on PATH: whether the page is legible in a browser is NOT checked here"
)
def test_screenshots_in_a_browser(demo: Path, tmp_path: Path) -> None:
    """The page fits a phone and a desk, has colour where credit is, and follows the reader's dark mode."""
    from PIL import Image

    shots = {}
    for name, width, dark in (("phone", 500, False), ("desk", 1200, False), ("night", 1200, True)):
        shot = tmp_path / f"{name}.png"
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / name}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={width},12000", f"--screenshot={shot}",
            (demo / "report" / "index.html").resolve().as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        shots[name] = Image.open(shot).convert("RGB")
    light, dark = _palettes()
    for name, palette in (("phone", light), ("desk", light), ("night", dark)):
        image = shots[name]
        ground = tuple(int(v) for v in _rgb(palette["bg"]))
        assert image.getpixel((1, 1)) == ground, name
        # Nothing runs over the right edge: the page's last columns are empty.
        assert {image.getpixel((image.width - 2, y)) for y in range(0, image.height, 3)} == {ground}, name
        paint = [int(v) for v in palette["pos-rgb"].split()]
        share = 0.08 + 0.42 * 0.82  # the first span of the first patch: 0.75 ** 0.7 = 0.82
        wanted = [share * p + (1 - share) * g for p, g in zip(paint, ground, strict=True)]
        near = int(np.all(np.abs(np.asarray(image, dtype=float) - wanted) <= 2, axis=2).sum())
        assert near > 1000, f"{name}: no line is painted with the credit colour"


def _palettes() -> tuple[dict[str, str], dict[str, str]]:
    css = (Path(report.__file__).parent / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, flags=re.S)
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", blocks[0]))
    return light, light | dict(re.findall(r"--([\w-]+): ([^;]+);", blocks[1]))


def _rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _contrast(first: str, second: str) -> float:
    return _contrast_rgb(_rgb(first), _rgb(second))


def _contrast_rgb(first: list[float], second: list[float]) -> float:
    """WCAG 2 contrast ratio of two sRGB colours."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_status_has_words() -> None:
    """A new outcome must not appear in a report without an explanation."""
    from boostapr.outcomes import Status

    assert set(terms.STATUSES) == {status.value for status in Status}
