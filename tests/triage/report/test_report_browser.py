"""The report in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.results import write_triage
from support.results import write_whole_cell as write_cell

from pytest_aorta.triage.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

#: Nothing of its own on the network, and no state of an earlier start.
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
)


class Browser:
    def __init__(self, profile: Path) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options=options, service=Service(str(DRIVER)))

    def open(self, file: Path, fragment: str = "", *, width: int = 1280) -> None:
        """Open a file in a fresh page, on a screen of this width in CSS pixels."""
        self.driver.get("about:blank")
        self.logs("browser")
        self.logs("performance")
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": still})
        self.driver.get(file.as_uri() + fragment)

    def js(self, expression: str, *arguments: object) -> Any:
        """The value of an expression in the page."""
        return self.driver.execute_script(f"return {expression}", *arguments)

    def texts(self, selector: str) -> list[str]:
        """Of the elements that are visible."""
        return [
            str(text).strip()
            for text in self.js(
                "[...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.innerText)",
                selector,
            )
        ]

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def press(self, selector: str, keys: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(keys)

    @property
    def fragment(self) -> str:
        """Of the address, without its mark."""
        return str(self.js("location.hash")).removeprefix("#")

    def logs(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def complaints(self) -> list[str]:
        return [str(entry["message"]) for entry in self.logs("browser")]

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; without one, tests that ask for it are skipped."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium here, or no chromedriver (Debian: apt-get install chromium chromium-driver)")
    pytest.importorskip("selenium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


ROWS = "#all > tbody > tr:first-child"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    output = folder / "report.html"
    write_report(write_triage(folder / "results"), output)
    return output


def column(browser: Browser, table: str, number: int) -> list[str]:
    return browser.texts(f"#{table} > tbody > tr:first-child > :nth-child({number})")


def test_it_asks_for_nothing_but_itself_and_complains_of_nothing(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.click("#theme")
    browser.click("#theme")
    browser.js("localStorage.clear()")
    browser.click("#all thead th:nth-child(4) button")
    browser.press("#filter input[name=text]", "nan")
    assert browser.requests() == [report.as_uri()]
    assert browser.complaints() == []


def test_what_a_bug_report_needs_can_be_copied(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.click(".paste summary")
    browser.click("#copy")
    assert browser.js("document.getElementById('copy').textContent") in ("Copied", "Selected")
    assert browser.js("getSelection().toString()").startswith("**omp_1 fixes it: ")


def test_rows_are_sorted_by_every_column_up_and_down_and_back_also_with_the_keyboard(
    browser: Browser, report: Path
) -> None:
    browser.open(report)
    before = browser.texts(ROWS)
    for number in range(1, len(browser.texts("#all thead th")) + 1):
        button = f"#all thead th:nth-child({number}) button"
        state = f"document.querySelector('{button}').closest('th').getAttribute('aria-sort')"
        browser.click(button)
        first, order = column(browser, "all", number), browser.js(state)
        browser.click(button)
        assert {order, browser.js(state)} == {"ascending", "descending"}
        # Rows without a value are last, whichever way round.
        assert [text for text in first if text] == [text for text in column(browser, "all", number) if text][::-1] or (
            len(set(first)) < len(first)
        )
        browser.click(button)
        assert browser.js(state) is None
        assert browser.texts(ROWS) == before
    browser.press("#cells thead th:nth-child(3) button", " ")
    assert column(browser, "cells", 1)[0] == "local-none"
    browser.press("#cells thead th:nth-child(3) button", "\n")
    assert column(browser, "cells", 1)[0] == "local-omp_1"
    assert browser.fragment == "cells=2%2B"


def test_a_filter_leaves_what_fits_all_of_it(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.click(".signatures .filter")
    assert len(browser.texts(ROWS)) < 20
    browser.driver.back()
    assert len(browser.texts(ROWS)) == 64
    browser.press("#filter select[name=outcome]", "timeout")
    assert column(browser, "all", 4) == ["timeout"]
    assert browser.texts("#filter output") == ["1 of 64 trials"]
    browser.click("#filter button[type=reset]")
    browser.press("#filter input[name=text]", "SIGSEGV local-none")
    assert column(browser, "all", 4) == ["failed", "failed"]
    browser.press("#filter select[name=cell]", "local-omp_1")
    assert browser.texts("#filter output") == ["0 of 64 trials"]


def test_an_address_shows_another_reader_the_same(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.press("#filter select[name=outcome]", "not ok")
    browser.press("#filter input[name=text]", "nan")
    browser.click("#all thead th:nth-child(3) button")
    seen, fragment = browser.texts(ROWS), browser.fragment
    assert 0 < len(seen) < 20
    browser.open(report, f"#{fragment}")
    assert browser.texts(ROWS) == seen
    assert browser.js("document.querySelector('#filter select[name=outcome]').value") == "failing"
    assert browser.js("document.querySelector('#filter input[name=text]').value") == "nan"


def test_a_link_to_a_trial_opens_it_also_past_a_filter(browser: Browser, report: Path) -> None:
    browser.open(report, "#outcome=ok")
    browser.click(".signatures a.trial[href='#train/local-none/trial_4']")
    assert browser.texts("tbody.chosen summary") == ["ended by SIGSEGV"]
    assert browser.js("document.querySelector('tbody.chosen details').open")
    assert browser.fragment == "trial=train%2Flocal-none%2Ftrial_4"
    for fragment in ("#trial=train%2Flocal-none%2Ftrial_4", "#train/local-none/trial_4"):
        browser.open(report, fragment)
        assert browser.js("document.querySelector('tbody.chosen details').open")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, "#train/local-none/trial_0", width=width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    beyond = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg, .skip")
        && e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
    assert browser.js(beyond) == []
    cut = """[...document.querySelectorAll(".scroll")].filter(e => e.querySelector("table")
        && e.scrollWidth > e.clientWidth).map(e => e.getAttribute("aria-label"))"""
    assert browser.js(cut) == []


def test_every_row_can_be_read_without_scripts(browser: Browser, report: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(report)
        assert len(browser.driver.find_elements("css selector", ROWS)) == 64
        assert not browser.driver.find_element("css selector", "#filter").is_displayed()
        browser.click("#all summary")
        assert browser.driver.find_element("css selector", "#all details[open] .where").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x1b[31m\0\u202eevil"
)


def test_hostile_texts_are_texts(browser: Browser, tmp_path: Path) -> None:
    results, output = tmp_path / "results", tmp_path / "report.html"
    failure = {"phase": "run", "kind": "exception", "type": HOSTILE, "message": HOSTILE * 3, "traceback": HOSTILE}
    logs = {"stdout": f"{HOSTILE}\udc80" + "x" * 100_000}
    write_cell(results, "none", "F", logs=logs, overlay={"A": HOSTILE}, failure=failure, host=HOSTILE, cell=HOSTILE)
    write_cell(results, "evil", ".", workload="evil \"><b>'&", place=1)
    write_report(results, output)
    browser.open(output, width=360)
    browser.click("#all summary")
    assert browser.js("document.title") != "owned"
    assert browser.js("document.querySelectorAll('img, main script, main b').length") == 0
    assert browser.requests() == [output.as_uri()]
    assert browser.complaints() == []
    assert browser.js("document.documentElement.scrollWidth") <= 360
    assert not {*output.read_text()} & {"\0", "\x1b", "\u202e"}
