"""The page in Debian's Chromium, opened from disk: what a reader clicks, and the numbers that then stand there.

A missing browser is a failure where CI is set and a skipped test elsewhere (apt-get install chromium chromium-driver).
"""

import importlib.util
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from lpwm.report import page
from lpwm.report.gather import Gathered

pytestmark = pytest.mark.soak

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
AXE = "axe-core@4.10.3"


def missing(what):
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI must drive the page in a browser.")
    pytest.skip(f"{what} is not installed.")


class Browser:
    """A fresh Chromium at one page, with what it logged and requested."""

    def __init__(self, url, profile, width=1200, height=900, dark=False):
        if importlib.util.find_spec("selenium") is None:
            missing("selenium")
        from selenium import webdriver

        chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
        driver = shutil.which("chromedriver")
        if chromium is None or driver is None:
            missing("chromium or chromedriver")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.driver.command_executor.client_config.timeout = 600  # seconds a script may take on a busy machine
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.url = url
        self.driver.get(url)
        self.wait("return Boolean(window.lpwm && lpwm.marks.plots)")

    def ask(self, script, *args):
        return self.driver.execute_script(script, *args)

    def wait(self, script, seconds=300):
        end = time.monotonic() + seconds
        while not self.ask(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def click_cell(self, panel, row, col, n):
        """A real click in the middle of a cell."""
        from selenium.webdriver import ActionChains

        canvas = self.driver.find_elements("css selector", "canvas.map")[panel]
        self.ask("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
        side = canvas.size["width"]
        dx, dy = ((i + 0.5) * side / n - side / 2 for i in (col, row))
        ActionChains(self.driver).move_to_element_with_offset(canvas, dx, dy).click().perform()

    def keys(self, *names):
        from selenium.webdriver import ActionChains, Keys

        chain = ActionChains(self.driver)
        for name in names:
            chain.send_keys(getattr(Keys, name))
        chain.perform()

    def map(self, panel):
        return np.array(self.ask("return Array.from(lpwm.arena.panels[arguments[0]].values)", panel))

    def requests(self):
        """Every address the page requested, and every one of the network whoever requested it."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [e["params"] for e in events if e["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated")]
        requested = [(p.get("documentURL"), p["request"]["url"] if "request" in p else p["url"]) for p in sent]
        near = ("data:", "blob:")  # within the page
        return [
            url
            for document, url in requested
            if url.startswith(("http", "ws")) or (document == self.url and not url.startswith(near))
        ]

    def set(self, name, value, event="change"):
        self.ask(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event(arguments[2]))",
            name,
            value,
            event,
        )

    def complaints(self):
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def address(documents, tmp_path_factory):
    path = page.write(tmp_path_factory.mktemp("page") / "report.html", documents.everything())
    assert path.stat().st_size < 6_000_000
    return path.as_uri()


@pytest.fixture(scope="module")
def opened(address, tmp_path_factory):
    """One browser a kind of reader, kept for the module."""
    made = {}

    def open_(**kind):
        key = tuple(sorted(kind.items()))
        if key not in made:
            made[key] = Browser(address, tmp_path_factory.mktemp("profile"), **kind)
        return made[key]

    yield open_
    for browser in made.values():
        browser.driver.quit()


def jaccard_by_sets(active, row, col):
    """The map of one cell by Python's sets, (n·n,)."""
    n = len(active)
    sets = [set(active[r, c].nonzero()[0]) for r in range(n) for c in range(n)]
    mark = sets[row * n + col]
    return np.array([len(mark & s) / len(mark | s) if mark | s else 1.0 for s in sets])


def test_it_opens_from_disk_without_a_complaint_or_a_request(address, tmp_path):
    browser = Browser(address, tmp_path / "profile")
    try:
        assert browser.complaints() == []
        assert browser.requests() == [address]
        marks = browser.ask("return lpwm.marks")
        print(f"interactive after {marks['interactive']:.0f} ms, curves after {marks['plots']:.0f} ms")
        drawn = browser.ask(
            "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.scatterlayer .trace').length)"
        )
        assert len(drawn) == 9 and min(drawn) >= 2
        assert browser.ask(
            "return lpwm.data.plots.every(p => document.getElementById(p.id)._fullData.length >= p.traces.length)"
        )
    finally:
        browser.driver.quit()


def test_clicking_a_cell_shows_the_map_that_python_computes(opened, documents):
    browser = opened()
    sparse, dense = documents.supports(True), documents.supports(False)
    for panel, row, col in ((0, 1, 6), (1, 5, 2), (0, 0, 0), (1, 7, 7)):
        browser.click_cell(panel, row, col, documents.N)
        for side, active in enumerate((sparse, dense)):
            np.testing.assert_array_equal(browser.map(side), jaccard_by_sets(active, row, col))
            assert (
                browser.find(f"#arena-panels > :nth-child({side + 1}) canvas").get_attribute("data-reference")
                == f"{row},{col}"
            )
        assert f"row {row + 1}, column {col + 1}" in browser.find("#arena-readout").text
    # the pixels are those numbers: the cell's color is the map's shade of its value
    browser.click_cell(0, 1, 6, documents.N)
    value = float(browser.map(0)[2 * documents.N + 5])
    assert 0.05 < value < 0.95
    shown = browser.ask(
        "const c = document.querySelector('canvas.map'), s = c.width / arguments[0];"
        "const at = c.getContext('2d').getImageData(5.5 * s, 2.5 * s, 1, 1).data;"
        "return [Array.from(at).slice(0, 3), lpwm.shade(arguments[1])]",
        documents.N,
        value,
    )
    assert shown[0] == shown[1]


def test_arrow_keys_move_the_reference(opened, documents):
    browser = opened()
    browser.click_cell(0, 3, 3, documents.N)
    browser.keys("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_DOWN")
    np.testing.assert_array_equal(browser.map(0), jaccard_by_sets(documents.supports(True), 4, 5))
    browser.keys("HOME", "ARROW_LEFT", "PAGE_UP", "ARROW_UP")  # and no further than the edge
    np.testing.assert_array_equal(browser.map(1), jaccard_by_sets(documents.supports(False), 0, 0))


def test_another_study_can_stand_on_either_side(opened, documents):
    browser = opened()
    browser.click_cell(0, 2, 5, documents.N)
    browser.set("arena-right", 2)
    np.testing.assert_array_equal(browser.map(1), jaccard_by_sets(documents.supports(True, seed=1), 2, 5))
    browser.set("arena-right", 1)
    np.testing.assert_array_equal(browser.map(1), jaccard_by_sets(documents.supports(False), 2, 5))


def test_scrubbing_shows_the_frames_of_that_step(opened, documents):
    """Sheets are of known colors: the episode in red, time in green."""
    browser = opened()
    slider = browser.find("#episode-step")
    assert int(slider.get_attribute("max")) == documents.STEPS
    browser.wait("return Object.values(lpwm.player.current.images).every((i) => i.complete && i.naturalHeight)")

    def centers():
        return browser.ask(
            "return [...document.querySelectorAll('#episode-panels canvas')].map(c => "
            "Array.from(c.getContext('2d').getImageData(112, 112, 1, 1).data).slice(0, 3))"
        )

    for number, step, column, block in ((0, 0, 0, 0), (0, 13, 6, 3), (2, 7, 3, 2), (3, 30, 15, 6)):
        browser.set("episode-number", number)
        browser.set("episode-step", step, "input")
        goal, *rest = centers()
        assert len(rest) == 5  # camera and imagined of both models, the oracle's camera
        assert abs(goal[0] - 40 * number) < 12
        for shown, at, of in zip(rest, (column, block, column, block, column), (15, 6, 15, 6, 15), strict=True):
            assert abs(shown[0] - 40 * number) < 12 and abs(shown[1] - 255 * at // of) < 12, (step, shown)
        status = browser.find("#episode-panels .status").text
        assert "Distance to the goal" in status and (step < 26 or "at the goal" in status)
    slider.click()  # in its middle, then by the keyboard
    before = int(slider.get_attribute("value"))
    browser.keys("ARROW_LEFT", "ARROW_LEFT")
    assert int(slider.get_attribute("value")) == before - 2 == browser.ask("return lpwm.player.t")
    assert browser.find("#episode-number option").text == "1: sparse LpWM there at step 26"  # whose step it is
    browser.set("episode-cell", 1)  # the other goals have sheets of their own
    browser.wait("return Object.values(lpwm.player.current.images).every((i) => i.complete && i.naturalHeight)")
    assert centers()[0][2] > 100


def test_playing_runs_to_the_end_and_stops(opened, documents):
    browser = opened()
    play = browser.find("#episode-play")
    browser.set("episode-step", 20, "input")
    play.click()
    assert play.text == "Pause" and play.get_attribute("aria-pressed") == "true"
    browser.wait("return document.getElementById('episode-play').textContent === 'Play'")
    assert browser.ask("return lpwm.player.t") == documents.STEPS


def test_the_map_follows_the_pointer_and_a_click_keeps_it(opened, documents):
    from selenium.webdriver import ActionChains

    browser = opened()
    browser.click_cell(0, 5, 5, documents.N)
    canvas = browser.driver.find_elements("css selector", "canvas.map")[0]
    side = canvas.size["width"]
    dx, dy = ((i + 0.5) * side / documents.N - side / 2 for i in (2, 1))
    ActionChains(browser.driver).move_to_element_with_offset(canvas, dx, dy).perform()
    np.testing.assert_array_equal(browser.map(1), jaccard_by_sets(documents.supports(False), 1, 2))
    ActionChains(browser.driver).move_to_element(browser.find("#arena-readout")).perform()
    np.testing.assert_array_equal(browser.map(1), jaccard_by_sets(documents.supports(False), 5, 5))


def test_units_and_frames_are_drawn_where_they_are_on(opened, documents):
    """Unit u is on in zone u % 4 alone: tiles are filled in one quarter, the raster along its blocks."""
    from selenium.webdriver import ActionChains

    browser = opened()
    on = browser.ask(
        "const c = document.querySelectorAll('canvas.units')[1], g = c.getContext('2d'), [F, U] = arguments;"
        "const unit = (c.height - 17) / U, at = (f, u) =>"
        "  g.getImageData((f + 0.5) * c.width / F, 17 + (u + 0.5) * unit, 1, 1);"
        "return [...Array(F).keys()].map(f => [...Array(U).keys()].map(u => at(f, u).data[0] < 128))",
        120,
        documents.UNITS,
    )
    zone, prefers = np.repeat(np.arange(4), 30), np.repeat(np.arange(4), documents.UNITS // 4)
    assert (np.array(on) == (zone[:, None] == prefers)).mean() > 0.99
    tiles = browser.find("canvas.units")
    browser.ask("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", tiles)
    ActionChains(browser.driver).move_to_element_with_offset(tiles, 12 - tiles.size["width"] / 2, 0).perform()
    said = [e.text for e in browser.driver.find_elements("css selector", "#units-panels .summary")]
    assert "on in 25 % of the frames" in said[0] and "units are above 5 % of the largest |z|" in said[1]


def test_dark_by_the_readers_setting_and_by_the_button(opened):
    dark, light = opened(dark=True), opened()

    def ground(browser):
        return browser.ask("return getComputedStyle(document.body).backgroundColor")

    def curve(browser):
        return browser.ask("return document.querySelector('#plot-loss .scatterlayer path.js-line').style.stroke")

    assert ground(dark) == "rgb(21, 23, 26)" and ground(light) == "rgb(252, 251, 248)"
    assert curve(dark) == "rgb(86, 180, 233)" and curve(light) == "rgb(0, 114, 178)"
    button = light.find("#theme")
    button.click()
    assert ground(light) == ground(dark) and curve(light) == curve(dark)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert ground(light) == "rgb(252, 251, 248)" and curve(light) == "rgb(0, 114, 178)"


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_scrolls_sideways(opened, width):
    browser = opened(width=width, height=740)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    wide = browser.ask(
        "return [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.skip, .plot svg, thead')).map(e => e.outerHTML.slice(0, 120))"
    )
    assert wide == []
    assert browser.ask("return document.documentElement.scrollWidth") <= width
    browser.ask("scrollTo(1000, 0)")
    assert browser.ask("return scrollX") == 0


def test_on_paper_all_is_light_and_unfolded(opened):
    browser = opened(dark=True)
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.ask("return getComputedStyle(document.body).backgroundColor") == "rgb(252, 251, 248)"
    assert browser.ask("return [...document.querySelectorAll('details')].every(d => d.open)")
    browser.ask("dispatchEvent(new Event('afterprint'))")
    assert browser.ask("return lpwm.dark()")
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": False})
    assert pdf["data"].startswith("JVBER")  # %PDF


AUDIT = (Path(__file__).parent / "audit.js").read_text()


@pytest.mark.parametrize("kind", [{}, {"dark": True}, {"width": 360, "height": 740}], ids=["light", "dark", "phone"])
def test_landmarks_names_headings_and_contrast(opened, kind):
    browser = opened(**kind)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask(AUDIT) == []


def test_the_keyboard_reaches_everything_in_reading_order(opened):
    browser = opened()
    browser.ask(
        "document.activeElement.blur(); scrollTo(0, 0);"
        "document.querySelectorAll('details').forEach(d => { d.open = false; })"
    )
    wanted = browser.ask(
        "return [...document.querySelectorAll('a, button, select, input, summary, canvas[tabindex]')]"
        ".filter(e => e.getClientRects().length).length"
    )
    browser.ask(
        "document.body.setAttribute('tabindex', '-1'); document.body.focus(); document.body.removeAttribute('tabindex')"
    )
    places, outlined = [], 0
    for _ in range(wanted):
        browser.keys("TAB")
        top, tag, ring = browser.ask(
            "const e = document.activeElement, all = [...document.querySelectorAll('*')];"
            "return [all.indexOf(e), e.tagName, getComputedStyle(e).outlineStyle]"
        )
        assert tag != "BODY"
        places.append(top)
        outlined += ring != "none"
    assert places == sorted(set(places))
    assert outlined == wanted


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """axe-core, fetched by npm into a folder of its own; where there is no npm, our own audit above must do."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed.")
    folder = tmp_path_factory.mktemp("axe")
    fetched = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=120)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch {AXE}: {fetched.stderr[-200:]}")
    subprocess.run(["tar", "xzf", next(folder.glob("*.tgz")).name], cwd=folder, check=True)
    return (folder / "package" / "axe.min.js").read_text()


@pytest.mark.parametrize("kind", [{}, {"dark": True}, {"width": 360, "height": 740}], ids=["light", "dark", "phone"])
def test_axe_finds_nothing_serious(opened, axe, kind):
    browser = opened(**kind)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.ask(axe)
    audit = browser.driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
    assert len(audit["passes"]) > 30
    serious = [v for v in audit["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"][:150]) for v in serious] == []


def test_one_study_or_none_and_no_episodes_work_too(documents, tmp_path):
    everything = documents.everything()
    for name, given in (
        ("one", Gathered(everything.runs[:1], studies=everything.studies[:1])),
        ("bare", Gathered([documents.run(log=False)])),
    ):
        path = page.write(tmp_path / f"{name}.html", given)
        browser = Browser(path.as_uri(), tmp_path / f"profile-{name}")
        try:
            assert browser.complaints() == []
            assert browser.requests() == [path.as_uri()]
            assert browser.ask("return document.querySelectorAll('canvas.map').length") == (name == "one")
        finally:
            browser.driver.quit()


def test_no_script_that_files_bring_runs(documents, tmp_path):
    given, evil = documents.poisoned_page(), documents.EVIL
    path = page.write(tmp_path / "evil.html", given, title=evil, commands=[evil])
    browser = Browser(path.as_uri(), tmp_path / "profile")
    try:
        browser.ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        for menu in browser.driver.find_elements("css selector", "select"):
            browser.ask("arguments[0].selectedIndex = arguments[0].length - 1", menu)
            browser.ask("arguments[0].dispatchEvent(new Event('change', {bubbles: true}))", menu)
        time.sleep(0.5)
        assert browser.ask("return window.ran") is None
        assert browser.ask("return document.querySelectorAll('img[src=x]').length") == 0
        assert "onerror" in browser.ask("return document.body.innerText")  # it is there, as text
        assert browser.requests() == [path.as_uri()]
    finally:
        browser.driver.quit()
