"""Text with markup in it shows as text: in report.html, in tables of a page, and in a real browser."""

import shutil
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from experiments.report.figures import save
from experiments.report.report import Part, Report, Source
from experiments.report.tables import markdown_table

SENTENCE = """A <script>canary()</script> & <img src=x onerror="canary()"> 'cat' </pre></title><!-- end a --> | sat"""
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "button", "script", "main", "h2", "div", "table",
    "thead", "tbody", "tr", "th", "p", "pre", "figure", "img", "figcaption",
}  # fmt: skip
ATTRIBUTES = {
    "html": {"lang"}, "meta": {"charset", "name", "content", "http-equiv"}, "header": {"class"},
    "button": {"type", "id", "aria-pressed"}, "div": {"class"}, "table": {"class"},
    "th": {"scope"}, "img": {"alt", "src"},
}  # fmt: skip


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_data(self, text):
        self.texts.append(text)

    def handle_comment(self, text):
        raise AssertionError(f"a comment: {text}")


@pytest.fixture
def page(tmp_path):
    """A report whose every text is the sentence."""
    picture = save(Figure(figsize=(1, 1)), tmp_path / "a.png")
    part = Part(SENTENCE, SENTENCE, [{SENTENCE: SENTENCE}], lines=SENTENCE, picture=picture, caption=SENTENCE)
    source = Source(SENTENCE, "", "", {})
    return Report(SENTENCE, "a", [part]).html(source, configuration=SENTENCE).decode()


def test_a_report_has_no_other_elements_than_ours(page):
    found = Page(page)
    assert found.tags == TAGS
    assert {(tag, name) for tag, name, _ in found.attributes} == {(t, n) for t in ATTRIBUTES for n in ATTRIBUTES[t]}
    assert [value for tag, name, value in found.attributes if (tag, name) == ("img", "alt")] == [SENTENCE]
    # title of page and report, heading, two cells, text, lines, caption and configuration; the source has more in it
    assert (found.texts.count(SENTENCE), sum(SENTENCE in text for text in found.texts)) == (9, 10)


def test_cells_of_a_page_s_tables_hold_no_markup():
    head, rule, row = markdown_table([{SENTENCE: SENTENCE, "two\nlines": "a\nb"}]).split("\n")
    for line in (head, row):
        assert "<" not in line
        assert line.replace(r"\|", "").count("|") == rule.count("|") == 3
    assert row.endswith("| a b |")


@pytest.mark.slow
def test_a_browser_shows_markup_as_text(page, tmp_path):
    browsers = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs a browser")
    (tmp_path / "report.html").write_text(page)
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page()
        called = []
        tab.expose_function("canary", lambda: called.append(1))
        tab.goto((tmp_path / "report.html").as_uri())
        tab.wait_for_load_state("networkidle")
        assert tab.title() == SENTENCE
        assert tab.locator("h1").inner_text() == SENTENCE
        assert [text.strip() for text in tab.locator("p").all_inner_texts()] == [SENTENCE] * 2
        assert tab.locator("pre").all_inner_texts() == [SENTENCE] * 2
        assert tab.locator("script").count() == 1  # the page's own
        browser.close()
    assert called == []
