"""Take the pictures of the viewer for the site: ``python docs/figures/screenshots.py PAGE``.

PAGE is a page of ``write_viewer``; that of the pictures is the one that ``make demo`` leaves. It needs the package
playwright and a chromium.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, HEIGHT = 1440, 900  # of the window, in pixels


def main(page: Path) -> None:
    """Write ``viewer_words.png``, one word under two schemes, and ``viewer_matrix.png``, a cell that is pointed at."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        window.goto(page.resolve().as_uri())
        window.wait_for_selector(".viewer[data-ready]")
        for scheme in ("weibull", "marginal"):  # soft attention stays, Weibull weights come, marginal goes
            window.get_by_role("toolbar", name=scheme).get_by_role("button", name="posterior").click()
        window.locator(".line.target .word", has_text="does").first.hover()
        window.screenshot(path=IMAGES / "viewer_words.png")
        cells = window.locator(".matrix tbody tr").nth(3).locator("td")
        cells.nth(3).hover()
        window.locator(".matrices").screenshot(path=IMAGES / "viewer_matrix.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
