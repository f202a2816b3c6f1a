"""The page in a real browser, without a window: pointing, toggling, the keyboard, markup, light and dark.

Skipped where the package playwright or the system's chromium is missing. One test is part of the ordinary suite: to
start a browser takes seconds.
"""

import shutil

import pytest
import torch

from pyro_attention.analysis import GoldAlignment
from pyro_attention.viewer import AlignmentView, write_viewer
from tests.viewer.samples import caption, pair

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Write views and open the page; whatever goes wrong in it, or is asked of the network, fails the test."""
    contexts, faults = [], []

    def opened(*views, title="A title", **options):
        write_viewer(tmp_path / "page.html", views, title=title)
        contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: faults.append(request.url) if request.url[:4] == "http" else None)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector(".viewer[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def word(page, text, *, line=".line.target"):
    return page.locator(f"{line} .word", has_text=text).first


def said(page):
    return page.locator("[data-part=sentence]").text_content()


def colors(page, line):
    """Place on the scale of colors, 0 to 1, of each word of the source in a line."""
    return [
        float(one) for one in line.locator(".word").evaluate_all("all => all.map(e => e.style.getPropertyValue('--w'))")
    ]


def test_pointing_at_a_word_shows_its_links(opened):
    view = pair(gold=GoldAlignment(frozenset({(2, 2)})))
    page = opened(view)
    word(page, "house").hover()
    assert page.locator("[data-part=word]").text_content() == "house (English)"
    mean = view.panels[1].samples.mean(0)[2]
    assert f"weibull: Haus {100 * mean[2]:.0f} %" in said(page)
    assert "In brackets the 90 % credible interval." in said(page)
    table = page.locator("[data-part=table]")
    assert table.locator("th[scope=rowgroup]").first.text_content() == "Haus gold link"
    assert table.locator("svg").first.locator(".sample").count() == 30
    first, _ = page.locator(".line.source").all()
    assert colors(page, first) == pytest.approx(mean.tolist(), abs=0.02)
    assert page.locator(".matrix tr.current th").first.text_content() == "house"
    # from the other side, and from a cell
    word(page, "klein", line=".line.source").hover()
    assert page.locator("[data-part=word]").text_content() == "kleine (German)"
    assert "small" in said(page)
    page.locator(".matrix tbody tr").nth(3).locator("td").nth(0).hover()
    assert page.locator("[data-part=word]").text_content() == "stands (English)"
    assert page.locator(".linktable tbody.current th").text_content() == "das"


@pytest.mark.slow
def test_prior_posterior_and_schemes_side_by_side(opened):
    page = opened(pair())
    shown = page.locator(".matrix caption")
    assert shown.all_text_contents() == ["weibull", "soft"]
    page.get_by_role("button", name="prior").click()
    assert shown.all_text_contents() == ["weibull prior", "weibull posterior", "soft posterior"]
    assert page.locator(".line.source").count() == 3
    for name in ("prior", "posterior"):
        page.get_by_role("button", name=name, exact=True).first.click()
    assert shown.all_text_contents() == ["soft posterior"]
    last = page.get_by_role("toolbar", name="soft", exact=True).get_by_role("button")
    last.click()  # something is always shown
    assert last.get_attribute("aria-pressed") == "true"
    assert shown.count() == 1


@pytest.mark.slow
def test_by_keyboard_alone(opened):
    page = opened(pair(), pair(1))
    page.locator("[data-part=colors]").focus()
    for first in ("das", "das", "the"):  # the source by two schemes, and the target
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == first
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-part=word]").text_content() == "house (English)"
    page.keyboard.press("End")
    assert page.locator("[data-part=word]").text_content() == ". (English)"
    page.keyboard.press("Shift+Tab")
    assert page.locator("[data-part=word]").text_content() == "das (German)"
    page.keyboard.press("Escape")
    assert "Point at a word" in said(page)
    # the list: one stop of the Tab key, and the arrow keys from there
    page.locator("[data-part=least]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("[data-part=title]").text_content() == "Pair 2"
    assert page.locator("[data-part=items] [aria-current]").text_content().startswith("Pair 2")


@pytest.mark.slow
def test_sorting_and_filtering_by_uncertainty(opened):
    views = [pair(number) for number in range(4)]
    page = opened(*views)
    scores = lambda: [int(one.split()[1]) for one in page.locator("li:not([hidden]) .score").all_text_contents()]  # noqa: E731
    given = scores()
    page.locator("[data-part=order]").select_option("unsure")
    assert scores() == sorted(given, reverse=True)
    options = page.locator("[data-part=order] option").all_text_contents()
    assert options[-1] == "where the schemes differ most"
    first = page.locator("[data-part=items] li:not([hidden]) .name").first
    assert page.locator("[data-part=title]").text_content() == first.text_content()  # the list and the view agree
    page.locator("[data-part=least]").fill("95")
    assert scores() == []
    assert page.locator("[data-part=count]").text_content() == "0 of 4 have such words"
    assert not page.locator(".shown").is_visible()
    assert page.locator("[data-part=none]").is_visible()
    page.locator("[data-part=least]").fill("0")
    assert page.locator(".shown").is_visible()
    page.locator("[data-part=colors]").select_option("width")
    assert page.locator(".matrix tbody td").first.text_content() != ""


@pytest.mark.slow
def test_a_search_lists_the_texts_with_the_word_and_shows_the_first(opened):
    page = opened(pair(), pair(1, source="der Hund , bellt", target="the dog , barks"), pair(2))
    page.locator("[data-part=search]").fill("HUND")  # of the source, whichever case
    assert page.locator("[data-part=count]").text_content() == "1 of 3 have such words"
    assert page.locator("[data-part=title]").text_content() == "Pair 2"
    page.locator("[data-part=search]").fill("small")
    assert page.locator("[data-part=title]").text_content() == "Pair 1"
    assert page.locator("[data-part=word]").text_content() == "small (English)"


@pytest.mark.slow
def test_a_page_opens_on_a_word_of_content_and_says_what_its_numbers_are(opened):
    weights = torch.full((4, 4), 0.25)  # the comma is as unsure as the others
    weights[2] = torch.tensor([0.97, 0.01, 0.01, 0.01])
    options = {"source": ["der", "Hund", ",", "bellt"], "target": ["the", ",", "dog", "barks"], "posterior": weights}
    page = opened(AlignmentView(**options, kind="links"), AlignmentView(**options))
    assert page.locator("[data-part=word]").text_content() == "barks (target)"
    assert page.locator(".linktable caption").text_content() == "is linked to (source): probability of a link"
    assert page.locator(".line .label").all_text_contents() == ["source", "target"]
    page.locator("[data-part=items] button").nth(1).click()
    assert page.locator(".linktable caption").text_content() == "attends to (source): attention weight"


@pytest.mark.slow
def test_regions_of_a_picture(opened):
    page = opened(caption())
    assert page.locator(".regions img").evaluate("image => image.complete && image.naturalWidth") == 8
    word(page, "dog").focus()
    regions = page.locator(".veil .word")
    assert regions.count() == 6
    assert "row 2, column 1" in said(page)
    regions.nth(3).focus()
    assert page.locator("[data-part=word]").text_content() == "row 2, column 1 (region)"
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-part=word]").text_content() == "row 2, column 2 (region)"
