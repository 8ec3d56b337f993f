"""Chromium without a screen, driven by Selenium: Debian's chromium and chromium-driver; nothing is downloaded."""

import base64
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

MISSING = next((f"{name} is not on the PATH" for name in ("chromium", "chromedriver") if not shutil.which(name)), "")
"""Why there is no browser; empty if there is one."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
TIMEOUT_S, POLL_S = 60.0, 0.1
"""A page takes a tenth of a second on an idle machine, and up to ten seconds on a busy one."""


class Browser:
    """One browser window."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Load a page in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer(scheme="dark" if dark else "light")
        self.driver.get(url)

    def prefer(self, *, scheme: str = "light", motion: str = "no-preference") -> None:
        """Set the user's preferences: dark or light, and "reduce" for less motion."""
        features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
        told = [{"name": name, "value": value} for name, value in features]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def seek(self, time_s: float) -> None:
        """Move the slider like a user."""
        script = (
            "const s = document.getElementById('seek'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
        )
        self.run(script, time_s)

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait for the condition, over reloads too; a timeout raises AssertionError with page and console."""
        reloads = [StaleElementReferenceException]
        try:
            WebDriverWait(self.driver, timeout_s, POLL_S, ignored_exceptions=reloads).until(lambda _: condition())
        except TimeoutException:
            said = f"console: {self.messages()}\npage: {self.text('body')}"
            raise AssertionError(f"{what} did not happen in {timeout_s:g} s\n{said}") from None

    def messages(self) -> list[str]:
        """Return the console's messages since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG, not only the window."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser with a fresh profile."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.get("about:blank")  # its own first page writes to the console, too
            yield Browser(driver)
        finally:
            driver.quit()
