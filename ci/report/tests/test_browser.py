"""The page in a real browser, which is told to be a phone or a desk, in the light or in the dark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci import report

from .sample import write_earlier, write_mutants, write_run

PHONE, DESK = 375, 1200
# Text on its background, as the Web Content Accessibility Guidelines want it.
LEAST_CONTRAST = 4.5
CONTRAST = """
const channel = value => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = text => text.match(/[0-9.]+/g).map(Number);
// What lies below a colour that lets it through shows.
const behind = element => {
  const layers = [];
  for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
  let colour = [255, 255, 255];
  for (const [r, g, b, alpha = 1] of layers.reverse())
    colour = [r, g, b].map((value, i) => alpha * value + (1 - alpha) * colour[i]);
  return colour;
};
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.closest('svg')) continue;
  const [one, two] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
  const contrast = (one + 0.05) / (two + 0.05);
  if (contrast < arguments[0]) found.push([element.className || element.tagName, element.textContent.slice(0, 40), contrast]);
}
return found;
"""  # noqa: E501 - JavaScript


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        # Where these tests are the ones that count, they must not be left out.
        assert not os.environ.get("CI"), f"{' and '.join(missing)} not found"
        pytest.skip(f"needs {' and '.join(missing)}")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, in the extra dev")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=["clean", "faults", "could not run"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, verdict=request.param, hostile=request.param == "faults")
    mutants, trend = write_mutants(folder / "mutants.json"), write_earlier(folder / "earlier", 9)
    report.render(folder, mutants=mutants, trend=trend)
    return folder / "report.html"


def opened(browser, page: Path, *, width: int, scheme: str):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    return browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_loads_without_an_error_and_fits(browser, page: Path, width: int, scheme: str):
    shown = opened(browser, page, width=width, scheme=scheme)
    assert shown.get_log("browser") == []
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width
    assert shown.execute_script("return document.body.scrollWidth") <= width
    pictures = shown.execute_script("return [...document.images].map(one => [one.complete, one.naturalWidth])")
    assert all(complete and across > 0 for complete, across in pictures)


def test_nothing_is_fetched(browser, page: Path):
    shown = opened(browser, page, width=DESK, scheme="light")
    asked = [entry["message"] for entry in shown.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert asked
    assert not [message for message in asked if '"url":"http' in message]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_the_light_and_in_the_dark(browser, page: Path, scheme: str):
    shown = opened(browser, page, width=DESK, scheme=scheme)
    assert shown.execute_script(CONTRAST, LEAST_CONTRAST) == []
    paper = shown.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(251, 251, 249)", "dark": "rgb(20, 24, 27)"}[scheme]


def test_the_figures_take_their_colours_from_the_page(browser, page: Path):
    seen = set()
    for scheme in ("light", "dark"):
        shown = opened(browser, page, width=DESK, scheme=scheme)
        seen.add(
            shown.execute_script(
                "const line = [...document.querySelectorAll('svg.chart path')]"
                ".find(one => (one.getAttribute('style') || '').includes('--float32'));"
                "return line && getComputedStyle(line).stroke"
            )
        )
    assert None not in seen
    assert len(seen) == 2


def test_the_verdict_is_seen_without_scrolling(browser, page: Path):
    shown = opened(browser, page, width=PHONE, scheme="light")
    place = shown.execute_script("return document.querySelector('.verdict').getBoundingClientRect().bottom")
    assert 0 < place < 800
