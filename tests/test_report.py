"""The report is whole in itself, safe whatever files say, and every control works, on a desk and on a phone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from browser import Browser, needs_browser
from conftest import command, options
from federation import ran

from fbompi.errors import UserError
from fbompi.report import content as drawn
from fbompi.report.page import report
from fbompi.runs import Run

EVIL = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2">&amp;\'"`${hacked}<!--'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run with stragglers, and two that are compared with each other."""
    folder = tmp_path_factory.mktemp("runs")
    few = options(run_rounds=12, record_every=2, clients_count=6)
    quadratic = options(run_problem="quadratic")
    return [
        ran(folder / "cleaning.h5", *few, *options(delays_stragglers=1, delays_compute=0.3)),
        ran(folder / "afbo.h5", *few, *quadratic, *options(run_seed=1)),
        ran(folder / "fedmbo.h5", *few, *quadratic, *options(run_algorithm="fedmbo")),
    ]


@pytest.fixture(scope="module")
def troubled(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which things went wrong, and whose texts are all hostile."""
    path = tmp_path_factory.mktemp("evil") / ("<img src=x onerror=hacked=3>" + "&'\"`.h5")
    shutil.copy(files[0], path)
    with h5py.File(path, "r+") as file:
        config = file.attrs["config"].replace('problem = "hypercleaning"', f"problem = {json.dumps(EVIL)}")
        file.attrs["config"] = config.replace('data = "digits"', f"data = {json.dumps(EVIL)}")
        for name in ("host", "status", "mpi"):
            file.attrs[name] = EVIL
        rows = file["trajectory"]
        rows.move("auc", EVIL.replace("/", "|"))
        for column in rows.values():
            column.attrs["meaning"] = column.attrs["unit"] = EVIL
        file["partition"].attrs["rule"] = EVIL
        events = file["events"][:]
        events["rejected"][:40:7] = 1
        file["events"][:] = events
        end = float(events["time_arrived"].max())
        told = [(end / 3, 4, 9, EVIL, 1, -1, EVIL), (end / 2, 5, 11, "client left out", 2, -1, EVIL),
                (end / 2, 5, 11, "client adopted", 3, 1, "")]  # fmt: skip
        file["incidents"].resize(3, axis=0)
        file["incidents"][:] = np.array(told, file["incidents"].dtype)
    return path


@pytest.fixture(scope="module")
def page(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    report(files, out)
    return out


@pytest.fixture(scope="module")
def evil_page(files: list[Path], troubled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "evil.html"
    report([troubled, files[0]], out)
    return out


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_is_whole_in_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "@import" not in text and set(re.findall(r"url\([^)]*\)", text)) == {"url(#hatch)"}
    elements = Elements(text).found
    assert not [e for e in elements if e[0] in ("link", "img", "iframe", "object", "base", "a")]
    assert not [e for e in elements if {"src", "href", "style"} & set(e[1]) or any(a.startswith("on") for a in e[1])]


def test_the_browser_is_told_to_run_our_script_only_and_to_fetch_nothing(evil_page: Path) -> None:
    text = evil_page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_that_a_file_says_becomes_markup(evil_page: Path) -> None:
    text = evil_page.read_text(encoding="utf-8")
    elements = Elements(text).found
    assert len([e for e in elements if e[0] == "script"]) == 2 and not [e for e in elements if e[0] == "img"]
    assert not [a for _, attrs in elements for a in attrs if a.startswith("on")] and "<!--" not in text
    assert text.count("&lt;img src=x") > 5


def content_of(page: Path) -> dict[str, Any]:
    return json.loads(re.search(r'id="content">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)[1])


def test_the_page_has_the_numbers_of_the_files(page: Path, files: list[Path]) -> None:
    found = content_of(page)
    for path, run in zip(files, found["runs"]):
        with h5py.File(path) as file:
            rows, log = file["trajectory"], file["events"][:]
            moved = rows["bytes_down"][:] + rows["bytes_up"][:]
            np.testing.assert_allclose(run["axes"]["bytes"], moved, rtol=1e-6)
            np.testing.assert_allclose(run["metrics"]["upper"], rows["upper"][:], rtol=1e-6)
        line = run["timeline"]
        for name, column in {"sent": "time_sent", "arrived": "time_arrived"}.items():
            there = np.frombuffer(base64.b64decode(line[name]), "<f4")
            np.testing.assert_allclose(there, log[column], rtol=1e-6)
        assert np.frombuffer(base64.b64decode(line["lane"]), "<u2").tolist() == log["client"].tolist()
        assert sum(run["ages"]["counts"]) == len(log)
    assert {axis["name"]: axis["label"] for axis in found["axes"]}["time"] == "time (virtual seconds)"


def test_long_runs_and_many_clients_are_cut_but_not_what_went_wrong(troubled: Path, monkeypatch) -> None:
    monkeypatch.setattr(drawn, "MOST_EVENTS", 20)
    monkeypatch.setattr(drawn, "MOST_CLIENTS", 4)
    monkeypatch.setattr(drawn, "MOST_ROWS", 3)
    run = Run(troubled)
    found = drawn.content([run], ["run"])["runs"][0]
    line = found["timeline"]
    assert len(line["lanes"]) == 4 and {2, 3} <= set(line["lanes"]) and line["until"] < line["end"]
    kept = np.isin(run.arrivals["client"], line["lanes"])
    bad = np.frombuffer(base64.b64decode(line["rejected"]), "<u1")
    assert len(bad) < 30 and bad.sum() == run.arrivals["rejected"][kept].sum() > 0
    assert found["axes"]["round"] == [0, 6, 12]


def test_tables_tell_costs_differences_and_incidents(page: Path, evil_page: Path) -> None:
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
    for words in ("What it took", "virtual s", "MB", "run.algorithm", "delays.stragglers", "no answer rejected"):
        assert words in text, words
    assert "Incidents of" in evil_page.read_text() and "client left out" in evil_page.read_text()


def test_the_command_writes_a_page_or_nothing(files: list[Path], tmp_path: Path) -> None:
    result = command("report", files[0], "-o", "one.html", cwd=tmp_path)
    assert (
        result.status == 0 and result.out == "one.html\n" and "What differs" not in (tmp_path / "one.html").read_text()
    )
    for arguments in ((files[0], "nothing.h5"), (files[0], "-o", "nowhere/a.html")):
        result = command("report", *arguments, cwd=tmp_path)
        assert result.status == 2 and result.err.count("\n") == 1, result
    assert [path.name for path in tmp_path.iterdir()] == ["one.html"]


def test_a_run_that_has_just_begun_has_a_page(files: list[Path], tmp_path: Path) -> None:
    shutil.copy(files[0], tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        for column in file["trajectory"].values():
            column.resize(0, axis=0)
        file["events"].resize(0, axis=0)
        file.attrs["status"] = "running"
    report([tmp_path / "run.h5"], tmp_path / "a.html")
    assert "killed while it ran" in (tmp_path / "a.html").read_text()
    with pytest.raises(UserError):
        report([tmp_path / "a.html"], tmp_path / "b.html")


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(params=["desk", "phone"])
def shown(request: pytest.FixtureRequest, browser: Browser, page: Path) -> Iterator[Browser]:
    """The page on the screen of a desk or of a phone; in the end it must have had nothing to complain of."""
    browser.size(*{"desk": (1200, 900), "phone": (360, 740)}[request.param])
    browser.open(page)
    browser.complaints()
    yield browser
    assert browser.complaints() == []


def line(browser: Browser, run: int = 1) -> str:
    return browser.run(f"document.querySelector('#curve path.line[data-run=\"{run}\"]')?.getAttribute('d') || ''")


def text(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)}).textContent")


CONTROLS = ["metric", "axis", "log-x", "log-y", "curve", "0", "1", "2", "all-runs", "no-runs", "lanes-run", "zoom-in",
            "zoom-out", "earlier", "later", "whole", "lanes"]  # fmt: skip
BEFORE = {"all-runs": ["no-runs"], "zoom-out": ["zoom-in"], "whole": ["zoom-in"],
          "earlier": ["zoom-in", "zoom-in"], "later": ["zoom-in", "zoom-in"]}  # fmt: skip
SEEN = """[...document.querySelectorAll('#curve, #curve-tip, #lanes, #lanes-note, #ages, details')].map(e =>
    e.tagName === 'DETAILS' ? e.open : e.innerHTML).join()"""


@needs_browser
def test_every_control_of_the_page_does_something(shown: Browser) -> None:
    shown.choose("metric", "x_error")
    there = "[...document.querySelectorAll('input, select, button, svg[tabindex]')].map(e => e.id || e.value)"
    assert shown.run(there) == CONTROLS
    for name in CONTROLS:
        for other in BEFORE.get(name, []):
            shown.click(f"#{other}")
        before = shown.run(SEEN)
        if name in ("metric", "axis", "lanes-run"):
            last = f"#{name} option:last-child"
            shown.choose(name, shown.run(f"document.querySelector('{last}').value"))
        elif name in ("curve", "lanes"):
            shown.press(f"#{name}", *{"curve": ["ArrowRight"], "lanes": ["+"]}[name])
        else:
            shown.click(f'input[value="{name}"]' if name.isdigit() else f"#{name}")
        if name != "0":  # that run has no such metric
            assert shown.run(SEEN) != before, name
    for index in range(shown.run("document.querySelectorAll('summary').length")):
        shown.run(f"document.querySelectorAll('summary')[{index}].click()")
        assert shown.run(f"document.querySelectorAll('details')[{index}].open")
    assert shown.run("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
def test_what_there_is_nothing_to_choose_from_is_not_there(browser: Browser, tmp_path: Path) -> None:
    still = options(run_problem="location", run_algorithm="fism", run_rounds=4, clients_count=3, delays_model="none")
    report([ran(tmp_path / "still.h5", *still)], tmp_path / "a.html")
    browser.size(390, 844)
    browser.open(tmp_path / "a.html")
    for name in ("all-runs", "lanes-run", "zoom-in", "lanes", "key"):
        assert browser.run(f"document.querySelector('#{name}').getBoundingClientRect().height") == 0, name
    assert "no time passed" in text(browser, "#lanes-note")
    browser.choose("axis", "time")
    numbers = browser.run("[...document.querySelectorAll('#curve text')].map(e => e.textContent)")
    assert "-1" not in numbers and "0" in numbers
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
def test_metric_axis_and_scales_change_the_curve(shown: Browser) -> None:
    assert shown.run("document.querySelectorAll('#curve path.line').length") == 1  # accuracy, which one run has
    assert "classified correctly" in text(shown, "#meaning")
    shown.choose("metric", "x_error")
    before = [line(shown, 1), line(shown, 2)]
    assert all(before) and "x*" in text(shown, "#meaning") and line(shown, 0) == ""
    seen = {before[0]}
    for axis, words in (
        ("communication", "rounds of"),
        ("time", "virtual seconds"),
        ("bytes", "kB"),
        ("calls", "samp"),
    ):
        shown.choose("axis", axis)
        assert words in text(shown, "#curve"), axis
        seen.add(line(shown))
    for box in ("log-y", "log-x"):
        shown.click(f"#{box}")
        seen.add(line(shown))
    assert len(seen) == 6 and "" not in seen


@needs_browser
def test_runs_are_hidden_and_shown(shown: Browser) -> None:
    shown.choose("metric", "upper")

    def count() -> int:
        return shown.run("document.querySelectorAll('#curve path.line').length")

    assert count() == 3
    shown.click('input.run[value="1"]')
    assert count() == 2 and line(shown, 1) == "" and line(shown, 2)
    shown.click("#no-runs")
    assert count() == 0 and "No run is shown" in text(shown, "#curve")
    shown.click("#all-runs")
    assert count() == 3
    shown.press('input.run[value="0"]', " ")  # by the keyboard
    assert count() == 2 and line(shown, 0) == ""


@needs_browser
def test_values_are_read_by_mouse_and_by_keyboard(shown: Browser, files: list[Path]) -> None:
    shown.choose("metric", "x_error")
    shown.point("#curve", 0.6, 0.5)
    assert not shown.run("document.querySelector('#curve-tip').hidden")
    told = text(shown, "#curve-tip")
    assert "afbo" in told and "fedmbo" in told and "outer round" in told
    shown.press("#curve", "Home", "ArrowRight", "ArrowRight")
    with h5py.File(files[1]) as file:
        value = file["trajectory/x_error"][2]
    heard = text(shown, "#curve-live")
    assert heard.startswith("outer round 4") and f"afbo {value:.5g}" in heard, heard
    shown.press("#curve", "Escape")
    assert shown.run("document.querySelector('#curve-tip').hidden")


def view(browser: Browser) -> tuple[float, float]:
    """What the note says of the stretch of time that is shown."""
    found = re.search(r"from (\S+) to (\S+) virtual", text(browser, "#lanes-note"))
    assert found
    return float(found[1]), float(found[2])


@needs_browser
def test_the_timeline_is_zoomed_and_moved_by_every_means(shown: Browser) -> None:
    begin, end = view(shown)
    assert begin == 0
    shown.click("#zoom-in")
    shown.click("#zoom-in")
    a, b = view(shown)
    assert b - a == pytest.approx(end / 4, rel=0.01) and (a + b) / 2 == pytest.approx(end / 2, rel=0.01)
    shown.click("#earlier")
    assert view(shown)[0] < a
    shown.click("#later")
    assert view(shown) == pytest.approx((a, b), rel=0.01)
    shown.click("#zoom-out")
    shown.click("#whole")
    assert view(shown) == (begin, end)
    shown.press("#lanes", "+", "ArrowRight", "-", "+")
    assert view(shown)[0] > 0 and view(shown)[1] - view(shown)[0] == pytest.approx(end / 2, rel=0.01)
    before = view(shown)
    shown.point("#lanes", 0.3, 0.3, drag=0.3)
    assert view(shown)[0] < before[0]
    shown.press("#lanes", "Home")
    assert view(shown) == (begin, end)
    shown.run(
        "document.querySelector('#lanes').dispatchEvent(new WheelEvent('wheel', {deltaY: -1, ctrlKey: true, "
        "clientX: 200, cancelable: true, bubbles: true}))"
    )
    assert view(shown)[1] - view(shown)[0] == pytest.approx(0.8 * end, rel=0.01)


@needs_browser
def test_the_timeline_tells_of_single_answers(shown: Browser) -> None:
    for _ in range(4):
        shown.click("#zoom-in")
    assert shown.run("document.querySelectorAll('#lanes path.tick, #lanes path.compute').length") == 2
    shown.point("#lanes", 0.6, 0.15)
    assert "client 0" in text(shown, "#lanes-tip")
    assert " slow" in text(shown, "#lanes")
    shown.choose("lanes-run", "2")
    assert " slow" not in text(shown, "#lanes") and "round of its task" in text(shown, "#ages-note")
    shown.choose("lanes-run", "1")
    assert "rounds of communication old on average" in text(shown, "#ages-note")
    assert shown.run("document.querySelectorAll('#ages rect.bar').length") > 1


@needs_browser
def test_everything_fits_and_has_a_name(shown: Browser) -> None:
    assert shown.run("document.documentElement.scrollWidth <= innerWidth")
    nameless = """[...document.querySelectorAll('input, select, button, svg[role], [role=region]')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    assert shown.run(nameless) == 0
    small = (
        """[...document.querySelectorAll('button, select')].filter(e => e.getBoundingClientRect().height < 32).length"""
    )
    assert shown.run(small) == 0
    outside = """[...document.querySelectorAll('.plot > svg text')].filter(e => {
        const b = e.getBoundingClientRect(), p = e.closest('svg').getBoundingClientRect();
        return b.width && (b.left < p.left - 1 || b.right > p.right + 1); }).map(e => e.textContent)"""
    assert shown.run(outside) == []
    levels = shown.run("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1 and max(np.diff(levels)) <= 1


@needs_browser
def test_hostile_texts_are_shown_and_do_nothing(browser: Browser, evil_page: Path) -> None:
    browser.size(1200, 900)
    browser.open(evil_page)
    choose = (
        "(s => {{ s.selectedIndex = {}; s.dispatchEvent(new Event('change')); }})(document.querySelector('#metric'))"
    )
    for metric in range(browser.run("document.querySelectorAll('#metric option').length")):
        browser.run(choose.format(metric))
        browser.point("#curve", 0.5, 0.5)
    browser.point("#lanes", 0.5, 0.5)
    browser.press("#curve", "ArrowRight", "ArrowRight")
    assert browser.run("typeof window.hacked") == "undefined" and browser.run("document.images.length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert "<img src=x onerror=hacked=3>" in text(browser, "header") and EVIL in text(browser, "main")
    marks = "document.querySelectorAll('#lanes path.bad, #lanes rect.left, #lanes path.adopted').length"
    assert browser.run(marks) == 3
    assert [c for c in browser.complaints() if "SEVERE" in c or "violates" in c] == []


@needs_browser
def test_light_dark_and_paper(browser: Browser, page: Path) -> None:
    def back() -> str:
        return browser.run("getComputedStyle(document.body).backgroundColor")

    def seen(selector: str) -> bool:
        return browser.run(f"getComputedStyle(document.querySelector('{selector}')).display !== 'none'")

    browser.size(1000, 800)
    browser.open(page)
    assert back() == "rgb(255, 255, 255)" and seen(".controls")
    browser.size(1000, 800, dark=True)
    assert back() == "rgb(22, 24, 27)"
    contrast = """(() => {
        const part = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
        const light = c => { const [r, g, b] = c.match(/\\d+/g).map(part); return .2126 * r + .7152 * g + .0722 * b; };
        const back = light(getComputedStyle(document.body).backgroundColor);
        return Math.min(...[...document.querySelectorAll('.note, footer, caption, svg text')].map(e => {
            const s = getComputedStyle(e), front = light(e.tagName === 'text' ? s.fill : s.color);
            return (Math.max(front, back) + .05) / (Math.min(front, back) + .05);
        }));
    })()"""
    assert browser.run(contrast) >= 4.5
    browser.size(1000, 800)
    assert browser.run(contrast) >= 4.5
    browser.size(1000, 800, dark=True, media="print")
    assert back() == "rgb(255, 255, 255)" and not seen(".controls") and seen("#curve")
    browser.size(390, 800)  # paper is as wide as it is, whatever the window
    width = "document.querySelector('#curve').getAttribute('viewBox')"
    browser.run("window.addEventListener('beforeprint', () => { window.printed = curve.getAttribute('viewBox'); })")
    pdf = base64.b64decode(browser.command("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    assert browser.run("window.printed").startswith("0 0 720 ") and browser.run(width).startswith("0 0 358 ")
