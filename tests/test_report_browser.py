"""The report's page in a real browser: Chromium without a window, spoken to over a pipe in its own protocol.

Nothing but the browser itself is needed (`apt-get install chromium`). Where there is none, these tests are
skipped and say so.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docom
from docom import report
from docom.curves import AXES, FEW_POINTS, PANELS, axis_scales
from docom.report.tables import reach_table
from test_report import HOSTILE, SHOWN, simulate_runs, write_run

EXECUTABLE = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no browser found: install Debian's chromium to test the report's page in it"
)
LINK = report.parse_link("10mbit,20ms")


class Browser:
    """One tab of a headless Chromium, and what it complained about."""

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None
        read_commands, self.commands = _pipe()
        self.answers, write_answers = _pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        options += [
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-proxy-server",
        ]
        arguments = [
            EXECUTABLE,
            *options,
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        silent = os.open(os.devnull, os.O_RDWR)
        # The browser reads commands from descriptor 3 and answers on 4.
        self.process = os.posix_spawn(
            EXECUTABLE,
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read_commands, 3),
                (os.POSIX_SPAWN_DUP2, write_answers, 4),
                (os.POSIX_SPAWN_DUP2, silent, 1),
                (os.POSIX_SPAWN_DUP2, silent, 2),
            ],
            setpgroup=0,
        )
        for descriptor in (read_commands, write_answers, silent):
            os.close(descriptor)
        self.received = b""
        self.number = 0
        self.session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        tabs = self.call("Target.getTargets")["targetInfos"]
        target = next(tab["targetId"] for tab in tabs if tab["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self.next_message()
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def next_message(self, patience: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has said nothing for {patience:g} seconds"
            piece = os.read(self.answers, 1 << 20)
            assert piece, "the browser has gone"
            self.received += piece
        text, _, self.received = self.received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self.notice(message.get("method", ""), message.get("params", {}))
        return message

    def notice(self, event: str, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown" or (
            event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(json.dumps(details))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(details["entry"]))
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append("dialog: " + details["message"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loaded += 1

    def open(self, path: Path, width: int = 1400) -> None:
        self.complaints, self.requests = [], []
        self.resize(width)
        before = self.loaded
        self.call("Page.navigate", url=path.as_uri())
        while self.loaded == before:
            self.next_message()
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, expression: str, patience: float = 30.0) -> None:
        """Let the page go on until the expression is true."""
        deadline = time.monotonic() + patience
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never became true: {expression}"
            time.sleep(0.02)

    def click(self, selector: str, times: int = 1) -> None:
        """Press the mouse where the element is."""
        x, y = self.evaluate(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{ block: "center", behavior: "instant" }});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def type(self, selector: str, text: str) -> None:
        """Replace what an input holds."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            pass
        finally:
            # It has its own process group: helpers of a browser that did not end by itself go with it.
            for _ in range(100):
                if os.waitpid(self.process, os.WNOHANG)[0]:
                    break
                time.sleep(0.05)
            else:
                os.killpg(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
            os.close(self.commands)
            os.close(self.answers)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors lie clear of 3 and 4."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return ends[0], ends[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[report.Configuration], Path]:
    """The configurations of some simulated runs, and the page of them."""
    runs = report.load([simulate_runs(tmp_path_factory.mktemp("runs"))])
    path = report.write(runs, tmp_path_factory.mktemp("out"), LINK)
    return report.configurations([report.priced(run, LINK) for run in runs]), path


@pytest.fixture
def page(browser: Browser, made: tuple[list[report.Configuration], Path]) -> Iterator[Browser]:
    """The page, freshly loaded; no test may leave a complaint."""
    browser.open(made[1])
    yield browser
    assert browser.complaints == []
    assert browser.requests == [made[1].as_uri()]


@pytest.fixture
def gathered(made: tuple[list[report.Configuration], Path]) -> list[report.Configuration]:
    return made[0]


def curves(page: Browser, panel: str) -> list[dict[str, Any]]:
    """What plotly draws in a panel."""
    found: list[dict[str, Any]] = page.evaluate(
        f"""[...document.querySelector("#panel-{panel} .plot").data].map((trace) => ({{
            x: [...trace.x], y: [...trace.y], visible: trace.visible,
            dash: trace.line.dash, colour: trace.line.color,
            configuration: trace.meta.configuration, band: Boolean(trace.meta.band),
        }}))"""
    )
    return found


def layout(page: Browser, panel: str, path: str) -> Any:
    return page.evaluate(f'document.querySelector("#panel-{panel} .plot")._fullLayout.{path}')


def shown_table(page: Browser) -> list[list[str]]:
    """The rows of the table of costs: remark, then each cell's text and range."""
    rows: list[list[str]] = page.evaluate(
        """[...document.querySelectorAll("#reach tbody tr")].map((row) => [
            row.querySelector("th small")?.textContent ?? "",
            ...[...row.querySelectorAll("td")].map(
                (cell) => [...cell.childNodes].map((part) => part.textContent).join("|")),
        ])"""
    )
    return rows


def expected_table(gathered: list[report.Configuration], level: float) -> list[list[str]]:
    rows = reach_table(gathered, level, SHOWN)
    return [
        [row.remark, *((cell.text or "–") + (f"|{cell.range}" if cell.range else "") for cell in row.cells)]
        for row in rows
    ]


def test_the_page_loads_without_a_complaint_or_a_request(page: Browser) -> None:
    assert page.evaluate("document.querySelectorAll('.plot .main-svg').length") >= len(PANELS)
    assert page.evaluate("typeof Plotly.version") == "string"


def test_the_policy_stops_what_a_page_must_not_do(browser: Browser, made: Any) -> None:
    browser.open(made[1])
    image = '<img src="http://127.0.0.1:9/x" onerror="window.ran = 1">'
    browser.evaluate("window.stopped = []; addEventListener('securitypolicyviolation', (e) => stopped.push(e))")
    browser.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(image)})")
    browser.wait_until("stopped.length >= 2")  # the handler and the request
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)
    assert browser.evaluate("window.ran === undefined")


def test_every_panel_has_its_curves(page: Browser, gathered: list[report.Configuration]) -> None:
    for key in PANELS:
        drawn = curves(page, key)
        lines = [curve for curve in drawn if not curve["band"]]
        assert [line["configuration"] for line in lines] == list(range(len(gathered)))
        assert [(line["colour"], line["dash"]) for line in lines] == [(c.colour, c.dash) for c in gathered]
        with_seeds = [number for number, c in enumerate(gathered) if len(c.runs) > 1]
        assert [curve["configuration"] for curve in drawn if curve["band"]] == with_seeds == [0, 1]
        measured = [sum(value is not None for value in c.curve(key).mean) for c in gathered]
        # On log scales the first record is left out: it has cost nothing, and the agents still agree.
        assert all(most - 1 <= len(line["x"]) <= most for line, most in zip(lines, measured, strict=True) if most)
        paths = page.evaluate(
            f"""[...document.querySelectorAll("#panel-{key} .scatterlayer path.js-line")]
                .filter((path) => path.getAttribute("d").length > 20).length"""
        )
        assert paths == sum((most > 0) * (1 + (len(c.runs) > 1)) for most, c in zip(measured, gathered, strict=True))


@pytest.mark.parametrize("key", SHOWN)
def test_the_axis_switch_changes_titles_and_data(page: Browser, gathered: list[report.Configuration], key: str) -> None:
    scale = axis_scales(gathered, str(LINK))[key]
    per_agent = {axis.all_links: axis.key for axis in AXES.values() if axis.all_links}
    if key in per_agent:
        page.click('#count [data-count="all-links"]')
    button = per_agent.get(key, key)
    page.click(f'[data-axis="{button}"]')
    page.click('#x-scale [data-log="false"]')
    for panel in PANELS:
        assert layout(page, panel, "xaxis.title.text") == scale.title
        assert layout(page, panel, "xaxis.type") == "linear"
    lines = [curve for curve in curves(page, "train_accuracy_worst") if not curve["band"]]
    for line, configuration in zip(lines, gathered, strict=True):
        assert line["x"] == pytest.approx([x / scale.size for x in configuration.spread(key).mean if x is not None])
        assert line["y"] == pytest.approx(configuration.spread("train_accuracy_worst").mean, rel=1e-6)
    pressed = page.evaluate('[...document.querySelectorAll("#axis [aria-pressed=true]")].map((b) => b.dataset.axis)')
    assert pressed == [button]


def shown_headings(page: Browser, table: str) -> list[str]:
    headings: list[str] = page.evaluate(
        f"""[...document.querySelectorAll("{table} thead th")]
            .filter((heading) => heading.getClientRects().length).map((heading) => heading.textContent)"""
    )
    return headings


def test_bits_and_bytes_are_counted_per_agent_and_on_request_on_all_links(
    page: Browser, gathered: list[report.Configuration]
) -> None:
    def bytes_shown() -> list[float]:
        page.click('[data-axis="agent_bytes"]')
        page.click('#x-scale [data-log="false"]')
        (unit,) = [axis["size"] for axis in axes if axis["title"] == layout(page, "loss_worst", "xaxis.title.text")]
        return [line["x"][-1] * unit for line in curves(page, "train_accuracy_worst") if not line["band"]]

    axes = page.evaluate("JSON.parse(document.getElementById('data').textContent).axes")
    headings = shown_headings(page, "#reach")
    assert len(headings) == len(set(headings)) == 1 + len(SHOWN) - 2
    agents = [configuration.runs[0].count("agents") for configuration in gathered]
    each = bytes_shown()
    page.click('#count [data-count="all-links"]')
    assert shown_headings(page, "#reach") == headings  # two columns have given way to their twins
    assert bytes_shown() == pytest.approx([one * n for one, n in zip(each, agents, strict=True)], rel=1e-5)
    assert page.evaluate("document.querySelector('#count [aria-pressed=true]').dataset.count") == "all-links"


def test_few_points_are_marked(page: Browser, gathered: list[report.Configuration]) -> None:
    assert all(len(configuration.steps) <= FEW_POINTS for configuration in gathered)
    modes = page.evaluate("document.querySelector('#panel-loss_worst .plot').data.map((trace) => trace.mode)")
    assert modes.count("lines+markers") == len(gathered)


def test_tables_are_sorted_from_the_keyboard(page: Browser, gathered: list[report.Configuration]) -> None:
    def order(table: str) -> list[int]:
        rows: list[int] = page.evaluate(
            f"[...document.querySelectorAll('{table} tbody tr')].map((row) => Number(row.dataset.row))"
        )
        return rows

    def press_enter(table: str, column: int) -> str:
        page.evaluate(f"document.querySelectorAll('{table} thead button')[{column}].focus()")
        for kind in ("keyDown", "keyUp"):
            page.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )
        said: str = page.evaluate(f"document.querySelectorAll('{table} thead th')[{column}].getAttribute('aria-sort')")
        return said

    as_written = list(range(len(gathered)))
    losses = [sum(configuration.last("loss_worst")) / len(configuration.runs) for configuration in gathered]
    upwards = sorted(as_written, key=lambda row: losses[row])
    assert order("#final") == as_written
    assert press_enter("#final", 1) == "ascending"
    assert order("#final") == upwards
    assert press_enter("#final", 1) == "descending"
    assert order("#final") == upwards[::-1]
    assert press_enter("#final", 1) == "none"
    assert order("#final") == as_written
    press_enter("#final", 1)
    labels = [configuration.label for configuration in gathered]
    assert press_enter("#final", 0) == "ascending"
    assert order("#final") == sorted(as_written, key=lambda row: labels[row].lower())
    assert page.evaluate("document.querySelectorAll('#final [aria-sort=ascending]').length") == 1
    # The table of costs keeps its order when the level changes, and what did not get there is last both ways.
    press_enter("#reach", 1)
    page.type("#level", repr((sorted(losses)[1] + sorted(losses)[2]) / 2))
    reached = [place for place, loss in enumerate(losses) if loss <= sorted(losses)[1]]
    assert set(order("#reach")[:2]) == set(reached)
    first = order("#reach")[0]
    assert press_enter("#reach", 1) == "descending"
    assert order("#reach")[1] == first
    assert set(order("#reach")[:2]) == set(reached)


def test_every_scale_has_its_switch(page: Browser, gathered: list[report.Configuration]) -> None:
    page.click('#x-scale [data-log="true"]')
    assert {layout(page, panel, "xaxis.type") for panel in PANELS} == {"log"}
    before = layout(page, "consensus_gap", "yaxis.type")
    for wanted in ("linear", "log"):
        page.click(f'[data-panel="loss_worst"] [data-log="{str(wanted == "log").lower()}"]')
        assert layout(page, "loss_worst", "yaxis.type") == wanted
        assert layout(page, "consensus_gap", "yaxis.type") == before
    assert layout(page, "test_accuracy_worst", "yaxis.type") == "linear"
    assert all(x > 0 for curve in curves(page, "loss_worst") for x in curve["x"])
    page.click('[data-axis="seconds"]')
    page.click('#x-scale [data-log="true"]')
    # The start took time to set up, but is no step: on a log scale it would draw a long false line.
    for line, configuration in zip(curves(page, "grad_norm_worst")[2:], gathered, strict=True):
        assert len(line["x"]) == len(configuration.steps) - 1


def visible(page: Browser) -> set[tuple[str, int, bool]]:
    return {(key, c["configuration"], c["band"]) for key in PANELS for c in curves(page, key) if c["visible"]}


def test_one_click_toggles_a_configuration_in_all_panels(page: Browser, gathered: list[report.Configuration]) -> None:
    everything = visible(page)
    assert {number for _, number, _ in everything} == set(range(len(gathered)))
    page.click('[data-configuration="1"]')
    assert visible(page) == {curve for curve in everything if curve[1] != 1}
    assert page.evaluate("document.querySelector('[data-configuration=\"1\"]').ariaPressed") == "false"
    page.click('[data-configuration="1"]')
    assert visible(page) == everything
    page.click('[data-configuration="2"]', times=2)
    assert visible(page) == {curve for curve in everything if curve[1] == 2}
    page.click("#show-all")
    assert visible(page) == everything


def test_the_table_of_costs_follows_the_level(page: Browser, gathered: list[report.Configuration]) -> None:
    level = report.default_level(gathered)
    assert level is not None
    assert page.evaluate('document.getElementById("level").valueAsNumber') == level
    as_written = shown_table(page)
    assert as_written == expected_table(gathered, level)
    seen = {json.dumps(as_written)}
    losses = sorted(run.records[-1]["loss_worst"] for configuration in gathered for run in configuration.runs)
    start = gathered[0].runs[0].records[0]["loss_worst"]
    for wanted in (0.9 * losses[0], (losses[0] + losses[1]) / 2, (losses[-1] + start) / 2, 2 * start):
        page.type("#level", repr(wanted))
        assert shown_table(page) == expected_table(gathered, wanted)
        assert layout(page, "loss_worst", "shapes[0].y0") == wanted
        seen.add(json.dumps(shown_table(page)))
    assert len(seen) >= 4
    page.type("#level", "")
    assert json.dumps(shown_table(page)) in seen
    page.click("#level-reset")
    assert shown_table(page) == as_written


def test_the_slider_sets_the_level(page: Browser, gathered: list[report.Configuration]) -> None:
    page.evaluate(
        """(() => { const slider = document.getElementById("level-slider");
            slider.value = "400"; slider.dispatchEvent(new Event("input")); })()"""
    )
    level = page.evaluate('document.getElementById("level").valueAsNumber')
    assert level != report.default_level(gathered)
    assert shown_table(page) == expected_table(gathered, level)


@pytest.mark.parametrize("width", [1400, 700, 360])
def test_nothing_overflows(page: Browser, width: int) -> None:
    page.resize(width)
    plots = "[...document.querySelectorAll('.plot')]"
    assert page.evaluate(f"{plots}.length") == len(PANELS)
    page.wait_until(f"{plots}.every((plot) => Math.abs(plot.clientWidth - plot._fullLayout.width) <= 1)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_dark_scheme_reaches_the_plots(page: Browser) -> None:
    light = layout(page, "loss_worst", "font.color")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.wait_until(f"document.querySelector('#panel-loss_worst .plot')._fullLayout.font.color !== '{light}'")
    dark = layout(page, "loss_worst", "font.color")
    page.call("Emulation.setEmulatedMedia", features=[])
    assert (light, dark) == ("#1f2630", "#e4e7ec")


def test_a_hostile_label_is_only_text(browser: Browser, tmp_path: Path) -> None:
    records = [{"step": step, "bits": step, "loss_worst": 2.0 - step} for step in (0, 1)]
    summary = dict.fromkeys(("label", "algorithm", "compressor", "topology", "preset", "command", "status"), HOSTILE)
    write_run(tmp_path / "run", records, **summary, hyper={HOSTILE: HOSTILE}, provenance={HOSTILE: HOSTILE})
    browser.open(report.write(report.load([tmp_path]), tmp_path / "out", title=HOSTILE))
    assert browser.evaluate("document.querySelector('#legend button span').textContent") == HOSTILE
    assert browser.evaluate("document.title") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 3
    point = browser.evaluate(
        """(() => {
            const plot = document.querySelector("#panel-loss_worst .plot");
            plot.scrollIntoView({ block: "center", behavior: "instant" });
            const box = plot.getBoundingClientRect();
            const { xaxis, yaxis } = plot._fullLayout;
            const { x, y } = plot.data[0];
            return [box.x + xaxis._offset + xaxis.c2p(x[0]), box.y + yaxis._offset + yaxis.c2p(y[0])];
        })()"""
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=point[0] + 1, y=point[1] + 1)
    browser.wait_until("document.querySelector('.hoverlayer').textContent !== ''")
    hover = browser.evaluate("document.querySelector('.hoverlayer').textContent")
    assert HOSTILE[:40] in hover
    assert browser.complaints == []


# ---- over time ----


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a clock and a slow agent, one whose network changes and has outages, and one of very many agents."""
    parent = tmp_path_factory.mktemp("timed")
    clock = "step=20ms,latency=5ms,slow=3:4,outages=1@0.2-0.6"
    settings: list[tuple[int, str, dict[str, Any]]] = [
        (8, "ring", {"clock": clock, "loss": 0.1}),
        (8, "random-edges:0.6,complete", {"outages": 0.3}),
        (500, "ring", {"clock": clock, "outages": 0.1}),
    ]
    for number, (agents, topology, conditions) in enumerate(settings):
        docom.simulate(
            docom.problems.LeafSynthetic(agents=agents, classes=2, features=3), docom.DSGD(lr=0.01), topology=topology,
            steps=30, batch_size=2, eval_every=6, conditions=conditions,
        ).save(parent / str(number))  # fmt: skip
    return report.write(report.load([parent]), parent / "out")


def set_moment(page: Browser, place: int) -> str:
    page.evaluate(
        f"""(() => {{ const slider = document.getElementById("moment");
            slider.value = "{place}"; slider.dispatchEvent(new Event("input")); }})()"""
    )
    text: str = page.evaluate("document.getElementById('moment-text').textContent")
    return text


def shown(page: Browser, selector: str) -> int:
    count: int = page.evaluate(f"document.querySelectorAll('{selector}').length")
    return count


def test_lanes_and_network_follow_the_slider(browser: Browser, timed: Path) -> None:
    browser.open(timed)
    summary = json.loads((timed.parent.parent / "0" / "summary.json").read_text())
    lanes = summary["clock"]["lanes"]
    assert shown(browser, "#lanes .lane") == len(lanes["agents"]) == 8
    assert shown(browser, "#lanes path.waiting") == 8
    seen = set()
    for place in (0, len(lanes["computing"][0]) // 2):
        said = set_moment(browser, place)
        mean = sum(row[place] for row in lanes["computing"]) / 8
        assert f"computing {round(100 * mean)}%" in said or f"computing {int(100 * mean)}%" in said
        seen.add(said)
        states = [
            max(("computing", "waiting", "away"), key=lambda kind: lanes[kind][agent][place]) for agent in range(8)
        ]
        drawn = browser.evaluate(
            "[...document.querySelectorAll('#then circle')].map((dot) => dot.getAttribute('class'))"
        )
        assert drawn == states
    assert len(seen) == 2
    assert "waiting" in states  # for agent 3
    assert shown(browser, "#then line") == 8
    assert browser.evaluate("document.querySelector('.totals:not([hidden]) dd.missing') === null")
    assert browser.complaints == []


def test_the_moment_is_chosen_from_the_keyboard(browser: Browser, timed: Path) -> None:
    browser.open(timed)
    before = set_moment(browser, 0)
    browser.evaluate("document.getElementById('moment').focus()")
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert browser.evaluate("document.getElementById('moment').value") == "1"
    assert browser.evaluate("document.getElementById('moment-text').textContent") != before
    assert browser.evaluate("document.getElementById('moment').getAttribute('aria-valuetext')") != before


def test_a_network_that_changes_is_drawn_as_it_was(browser: Browser, timed: Path) -> None:
    browser.open(timed)
    browser.click('[data-history="1"]')
    moments = json.loads((timed.parent.parent / "1" / "summary.json").read_text())["moments"]
    assert browser.evaluate("document.querySelector('.lanes figure').hidden")
    assert len(moments) == 30
    for place in (0, 7, 29):
        said = set_moment(browser, place)
        assert said == f"step {moments[place]['step']}"
        assert shown(browser, "#then line") == len(moments[place]["edges"])
        assert shown(browser, "#then line.down") == len(moments[place]["down"])
    assert sum(len(moment["down"]) for moment in moments) > 0
    assert browser.complaints == []


@pytest.mark.parametrize("width", [1400, 360])
def test_very_many_agents_are_shown_together(browser: Browser, timed: Path, width: int) -> None:
    browser.open(timed, width)
    browser.click('[data-history="2"]')
    assert shown(browser, "#lanes .lane.whole") == 1
    assert shown(browser, "#lanes .lane") == 33
    assert "500" in browser.evaluate("document.querySelector('.lane.whole span').textContent")
    assert "links" in browser.evaluate("document.getElementById('then-text').textContent")
    assert shown(browser, "#then circle") == 0
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
