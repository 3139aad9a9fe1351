"""Debian's Chromium, driven by Selenium, for tests of pages; `make setup-browser` installs it."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
AXE = Path(os.environ.get("AXE_CORE", ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"))
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (BROWSER and DRIVER and importlib.util.find_spec("selenium")),
    reason="needs chromium, chromedriver and selenium: make setup-browser",
)
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason=f"needs axe-core in {AXE}: make setup-browser")

# The contrast of every text with what is behind it, by the formula of WCAG; gives the texts below 4.5.
CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const wrong = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest(":disabled")) continue;
  const [a, b] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) wrong.push(`${element.tagName} ${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return wrong;
"""


class Browser:
    """A window of Chromium."""

    def __init__(self, profile: Path):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(BROWSER)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(str(DRIVER)))
        self.driver.set_script_timeout(120)

    def size(self, width: int, dark: bool = False) -> None:
        """A window so wide, light or dark."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *args: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(script, *args)

    def wait(self, condition: str) -> None:
        """Until an expression is true; a minute is for machines that are busy."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60, 0.05).until(
            lambda driver: driver.execute_script(f"return {condition}"), condition
        )

    def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def errors(self) -> list[str]:
        """What the console has said of errors and warnings since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def axe(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        self.run(AXE.read_text())
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        return [
            f"{each['id']}: {node['html'][:120]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
