"""The watch page in a real browser: what it shows, by keyboard too, in light and dark, live, and on a phone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docom.records import as_line
from docom.sites import journal
from docom.watch import find, look, render
from launching import start
from test_report_browser import EXECUTABLE, HOSTILE, Browser
from test_watch import RUN, event, records, write

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no browser found: install Debian's chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The page of a finished run of three sites, two of which are seen here."""
    for name in ("basel", "bern"):
        records(write(tmp_path, name, RUN), {0: 2.0, 10: 1.0, 20: 0.5})
    path = tmp_path / "page.html"
    path.write_text(render(look(find(tmp_path))))
    browser.open(path)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def text(browser: Browser, selector: str) -> str:
    found: str = browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def test_it_shows_the_run(page: Browser) -> None:
    assert text(page, "h1") == "hearts"
    assert text(page, "#status").startswith("not running now · round 20")
    assert page.evaluate("document.querySelectorAll('.curve').length") == 2
    assert page.evaluate("[...document.querySelectorAll('.lane b')].map((b) => b.textContent)") == [
        "basel",
        "bern",
        "chur",
    ]
    assert page.evaluate("document.querySelectorAll('#links tbody tr').length") == 2
    assert page.evaluate("document.querySelectorAll('#drawing .edge').length") == 2
    assert "basel lost the connection to bern" in page.evaluate(
        "[...document.querySelectorAll('#news li')].map((l) => l.textContent).join('\\n')"
    )
    assert text(page, "#loss .reading") == "last: 0.5"


def test_lanes_draw_the_shares_of_the_events(page: Browser) -> None:
    drawn = page.evaluate("""[...document.querySelectorAll(".lane")][0].querySelectorAll("path").length""")
    assert drawn == 3
    assert "computing 48.8%" in text(page, ".lane .shares")
    label = page.evaluate("document.querySelector('.lane .bar').getAttribute('aria-label')")
    assert label == "basel: has finished; computing 48.8%, waiting 13.8%, away 37.5%"


def test_everything_is_reached_and_read_by_keyboard(page: Browser) -> None:
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(16):
        press(page, "Tab")
        reached.append(
            page.evaluate(
                "(document.activeElement.dataset.axis ?? document.activeElement.getAttribute('aria-label') ?? '')"
            )
        )
    wanted = ["time", "step", "loss", "disagreement", "basel: ", "bern: ", "chur: ", "basel and bern", "bern and chur"]
    found = [next((place for place, name in enumerate(reached) if name.startswith(want)), None) for want in wanted]
    assert None not in found, reached
    assert found == sorted(found), "in the order in which they are shown"
    page.evaluate("document.querySelector('#loss .chart').focus()")
    press(page, "Home")
    assert text(page, "#loss .reading").endswith(": 2")
    press(page, "ArrowRight")
    assert text(page, "#loss .reading").endswith(": 1")
    page.evaluate("document.querySelectorAll('.lane .bar')[0].focus()")
    press(page, "Home")
    assert "basel, " in text(page, "#lane-reading")
    assert "computing" in text(page, "#lane-reading")
    page.evaluate("document.querySelector('#drawing g').focus()")
    assert page.evaluate("document.querySelector('#links tr.chosen th').textContent") == "basel – bern"


def test_the_axis_switch_draws_rounds(page: Browser) -> None:
    page.click('[data-axis="step"]')
    page.evaluate("document.querySelector('#loss .chart').focus()")
    press(page, "End")
    assert text(page, "#loss .reading") == "round 20: 0.5"
    assert page.evaluate("[...document.querySelectorAll('[data-axis]')].map((b) => b.ariaPressed)") == ["false", "true"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_it_fits_and_can_be_read_in_light_and_dark(page: Browser, scheme: str, width: int) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.resize(width)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    contrasts = page.evaluate(
        """(() => {
            const light = (text) => {
                const [r, g, b] = text.match(/[\\d.]+/g).map((part) => part / 255)
                    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const back = (element) => {
                for (let at = element; at; at = at.parentElement) {
                    const colour = getComputedStyle(at).backgroundColor;
                    if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
                }
            };
            return ["h1", "#status", ".hint", ".lane b", ".lane small", ".reading", "#links td", "#news li",
                    "[data-axis=time]", "[data-axis=step]"]
                .map((selector) => {
                    const element = document.querySelector(selector);
                    const [a, b] = [light(getComputedStyle(element).color), light(back(element))].sort((x, y) => y - x);
                    return [selector, (a + 0.05) / (b + 0.05)];
                });
        })()"""
    )
    assert [name for name, ratio in contrasts if ratio < 4.5] == []
    page.call("Emulation.setEmulatedMedia", features=[])


def test_sites_that_measure_different_losses_have_curves_and_marks_of_their_own(
    browser: Browser, tmp_path: Path
) -> None:
    skip = [line | {"mode": "skip"} if "mode" in line else line for line in RUN]
    for name in ("basel", "bern"):
        path = write(tmp_path, name, skip) / "metrics.jsonl"
        path.write_text(
            as_line({"step": 0, "loss_worst": 2.0})
            + as_line({"step": 10, "loss_worst": 1.0 + (name == "bern"), "neighbour_gap": 0.25})
        )
    path = tmp_path / "page.html"
    path.write_text(render(look(find(tmp_path))))
    browser.open(path)
    assert text(browser, "#loss .reading") == "last: basel 1,bern 2"
    fill = "[...document.querySelectorAll('#loss .mark circle')].map((dot) => getComputedStyle(dot).fill)"
    stroke = "[...document.querySelectorAll('#loss .curve')].map((line) => getComputedStyle(line).stroke)"
    assert browser.evaluate(fill) == browser.evaluate(stroke)
    assert len(set(browser.evaluate(stroke))) == 2
    assert text(browser, "#disagreement .reading") == "last: 0.25"
    assert text(browser, "#disagreement .hint") == "mean distance of a site's model from its neighbours'"
    browser.resize(160)
    wide = (
        "document.querySelector('#loss .reading').scrollWidth <= document.querySelector('#loss .reading').clientWidth"
    )
    browser.wait_until(wide, 5)
    assert browser.complaints == []


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    write(
        tmp_path, "basel", [*RUN, event(85, "lost", HOSTILE)], run=HOSTILE, members=["basel", HOSTILE], edges=[[0, 1]]
    )
    path = tmp_path / "page.html"
    path.write_text(render(look(find(tmp_path))))
    browser.open(path)
    assert text(browser, "h1") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 2
    assert browser.complaints == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    write(tmp_path, "basel", RUN[:7])
    process = start([sys.executable, "-m", "docom", "site", "watch", str(tmp_path), "--port", "0"])
    assert process.stdout is not None
    yield process, "http://" + process.stdout.readline().split("http://")[1].split("/")[0] + "/"
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_it_follows_a_run_and_says_when_the_server_has_ended(
    browser: Browser, served: tuple[subprocess.Popen[str], Any], tmp_path: Path
) -> None:
    process, url = served
    browser.complaints, browser.requests = [], []
    browser.call("Page.navigate", url=url)
    browser.wait_until(f"location.href === {json.dumps(url)} && document.querySelectorAll('#news li').length > 0")
    count = browser.evaluate("document.querySelectorAll('#news li').length")
    with (tmp_path / "basel" / journal.FILE).open("a") as file:
        file.write(json.dumps(event(27, "skipped", "bern", 12, why="silent")) + "\n")
    browser.wait_until(f"document.querySelectorAll('#news li').length === {count + 1}")
    assert "goes on without bern: silent" in text(browser, "#news li")
    assert {one.removeprefix(url) for one in browser.requests} == {"", "events"}
    assert browser.complaints == []
    process.terminate()
    browser.wait_until("!document.querySelector('#gone').hidden")
    browser.call("Page.navigate", url="about:blank")
