"""A headless Chromium that opens files of this machine, and tells what they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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

    def open(self, file: Path, fragment: str = "", *, width: int = 1280, dark: bool = False) -> None:
        """Open a file in a fresh page, on a screen of this width in CSS pixels."""
        self.driver.get("about:blank")
        self.logs("browser")
        self.logs("performance")
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        media = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
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
