"""The report as a person sees it, in Chromium: at two widths, in light and dark. Skipped where there is no Chromium."""

import time
from pathlib import Path

import pytest

import doubly
from browser import PROGRAM, Browser
from chromium import AXE, needs_axe
from doubly.analysis.report import make

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium")
FIT = {"epochs": 3, "collect": 2, "theta_steps": 1, "batch": 400, "valid_draws": 10, "quiet": True}
READABLE = 4.5  # the contrast that WCAG 2 asks of text
CONTRASTS = """(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map(
      v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const each of document.querySelectorAll('h1, h2, p, li, th, td, a, figcaption, .flag, .chart text')) {
    if (each.matches('.inside') || !each.textContent.trim()) continue;
    let below = each;
    const paint = element => getComputedStyle(element).backgroundColor;
    while (below && /rgba\\(.*, 0\\)|transparent/.test(paint(below))) below = below.parentElement;
    const style = getComputedStyle(each), back = light(paint(below));
    const front = light(each.closest('.chart') ? style.fill : style.color);
    found.push([(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), each.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    run = doubly.fit(tmp_path_factory.mktemp("browser") / "run", data="digits", hidden=(20,), **FIT)  # type: ignore[arg-type]
    return make(run.path)[1]


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("wide", [1400, 390])
def test_it_fits_loads_and_can_be_read(browser, page, wide, dark):
    browser.open(page, wide, dark)
    assert browser.errors == []
    assert browser.ask("document.documentElement.scrollWidth") <= wide
    wider = "[...document.querySelectorAll('section')].filter(s => s.getBoundingClientRect().right > innerWidth).length"
    assert browser.ask(wider) == 0
    pictures = "Promise.all([...document.querySelectorAll('image')].map(i => { const p = new Image();"
    pictures += " p.src = i.getAttribute('href'); return p.decode().then(() => p.naturalWidth); }))"
    sizes = browser.ask(pictures)
    assert len(sizes) > 10
    assert min(sizes) > 7
    contrast, text = browser.ask(CONTRASTS)
    assert contrast >= READABLE, text


@needs_axe
@pytest.mark.parametrize("wide", [1400, 390])
def test_axe_finds_nothing_worth_a_word(browser, page, wide):
    browser.open(page, wide)
    browser.ask(f"{AXE.read_text()}; 1")
    said = "axe.run().then(found => found.violations.map(each => `${each.impact} ${each.id}: ${each.nodes[0].html}`))"
    assert browser.ask(said) == []


def test_dark_is_dark(browser, page):
    back = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for dark in (False, True):
        browser.open(page, 1400, dark)
        colours.append([int(part) for part in browser.ask(back).removeprefix("rgb(").removesuffix(")").split(",")])
    assert min(colours[0]) > 200
    assert max(colours[1]) < 60


def test_the_pointer_is_told_what_it_rests_on(browser, page):
    browser.open(page, 1400)
    where = browser.ask(
        "(() => { const t = document.querySelector('#training .touch');"
        " t.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const b = t.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    assert browser.ask("document.getElementById('tip').hidden")
    until, (x, y) = time.monotonic() + 60, where
    while browser.ask("document.getElementById('tip').hidden"):
        assert time.monotonic() < until
        y = where[1] + (y == where[1])  # a scroll hides the tip, and its event can come after that of the pointer
        browser.point(x, y)
    assert "epoch 1" in browser.ask("document.getElementById('tip').textContent")


def test_a_script_that_is_not_ours_does_not_run(browser, page, tmp_path):
    """The page's own policy stops it, should an escape ever be forgotten."""
    planted = tmp_path / "planted.html"
    planted.write_text(
        page.read_text().replace("<h1>", "<script>window.owned = 1</script><h1 onclick='window.owned = 1'>")
    )
    before = len(browser.errors)
    browser.open(planted, 1400)
    assert browser.ask("window.owned === undefined")
    del browser.errors[before:]


def test_it_prints(browser, page, tmp_path):
    browser.open(page, 1400, dark=True)
    browser.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
