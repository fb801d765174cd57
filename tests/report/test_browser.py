"""The report in a real browser: no error, no request, its numbers, its keys, its three appearances."""

import re

import pytest

from polykv.report_stages import report_stage
from tests.report.browser import Browser, find_chromium
from tests.report.run_samples import write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def page(browser, sample_run, tmp_path):
    browser.problems.clear()
    browser.prefer("light")
    browser.open(report_stage(sample_run, out=tmp_path / "report.html"))
    yield browser
    assert browser.problems == []


def background(page):
    return page.value("getComputedStyle(document.body).backgroundColor")


def test_the_page_says_its_numbers(page):
    assert "all 6 KV heads stay within" in page.value("document.querySelector('h1').innerText")
    assert "52 %" in page.value("document.querySelector('header table').innerText")
    assert page.value("document.querySelectorAll('.map td').length") == 6 * 3 * 3
    assert page.value("document.querySelectorAll('svg[role=img][aria-label]').length") == 2


def test_pointing_at_a_cell_shows_its_figures(page):
    assert page.value("document.getElementById('tip').hidden")
    page.hover(".map td")
    shown = page.value("document.getElementById('tip').innerText")
    assert shown.startswith("layer 0, head 0, int8: pass\ncandidate_k 16\ncosine 0.99")


def test_maps_are_walked_with_the_keys(page):
    page.value("document.querySelector('.map td').focus()")
    said = "document.activeElement.getAttribute('aria-label')"
    for key, words in (("ArrowRight", "layer 3, head 0"), ("ArrowDown", "layer 3, head 1"), ("End", "layer 7, head 1"), ("ArrowRight", "layer 7, head 1"), ("Home", "layer 0, head 1"), ("ArrowUp", "layer 0, head 0")):  # fmt: skip
        page.press(key)
        assert page.value(said).startswith(words), key
    assert page.value("document.getElementById('tip').innerText").startswith("layer 0, head 0")
    page.press("Escape")
    assert page.value("document.getElementById('tip').hidden")
    assert page.value("document.querySelectorAll('.map')[0].querySelectorAll('td[tabindex=\"0\"]').length") == 1


def test_light_dark_and_print(page, tmp_path):
    assert background(page) == "rgb(255, 255, 255)"
    page.prefer("dark")
    assert background(page) == "rgb(20, 23, 27)"
    page.value("document.getElementById('theme').click()")
    assert background(page) == "rgb(255, 255, 255)"
    page.value("document.getElementById('theme').click()")
    page.prefer("dark", "print")
    assert background(page) == "rgb(255, 255, 255)"
    assert page.value("getComputedStyle(document.getElementById('theme')).display") == "none"
    page.prefer("light")
    assert page.pdf().startswith(b"%PDF")
    page.screenshot(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").stat().st_size > 20_000


def test_text_can_be_read_on_its_colour(page):
    """WCAG contrast of 4.5 in every map cell, badge and key with a text, light and dark."""
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        assert page.value(CONTRASTS) == [], scheme


def test_a_narrow_screen_scrolls_its_tables_not_itself(page, tmp_path):
    page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    assert page.value("document.documentElement.scrollWidth") <= 390


def test_a_hostile_name_stays_text(browser, tmp_path):
    name = "</h1><script>document.title = 'pwned'</script><img src=http://127.0.0.1:1/x>"
    browser.problems.clear()
    browser.open(report_stage(write_run(tmp_path / "run", layers=(0,), model_id=name), out=tmp_path / "r.html"))
    assert browser.value("document.title") != "pwned"
    assert browser.value("document.images.length") == 0
    assert browser.problems == []


def test_the_browser_notices_what_goes_wrong(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(
        "<script>console.error('lost')</script><script>nothing()</script><img src='http://127.0.0.1:1/x'>"
    )
    browser.problems.clear()
    browser.open(broken)
    told = "\n".join(browser.problems)
    browser.problems.clear()
    assert re.search("console error.*lost", told)
    assert "nothing is not defined" in told
    assert "request: http://127.0.0.1:1/x" in told


CONTRASTS = """(() => {
  const part = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  const bad = [];
  for (const e of document.querySelectorAll('.map td, .badge, .key, .bar span')) {
    if (!e.textContent.trim()) continue;
    const style = getComputedStyle(e);
    const paper = numbers(style.backgroundColor);
    if (paper.length === 4 && paper[3] === 0) continue;
    const [a, b] = [light(numbers(style.color)), light(paper)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) bad.push(`${e.className} ${ratio.toFixed(2)}`);
  }
  return [...new Set(bad)];
})()"""
