"""Takes pictures of every page at two widths, in light and dark, and checks pages with axe-core.

`PYTHONPATH=src:. python tools/page_shots.py OUT [--axe axe.min.js] [--page NAME]`. The script needs
playwright (`pip install playwright`; tidelog does not depend on it) and Chromium: either
playwright's (`playwright install chromium`) or the system's. The script prints pages that are too
wide, texts that are cut or below 11 px, and violations that axe finds.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.worlds.made_pages import made_pages

WIDTHS: Final = (1280, 390)
SCHEMES: Final = ("light", "dark")
UNFOLD: Final = "for (const one of document.querySelectorAll('details')) one.open = true"
# Script for a page. It returns a line if the page is wider than the screen, one for each table that
# is wider than the screen, and one for each text that is smaller than 11 px or exceeds its picture.
CHECK: Final = """() => {
  const found = [];
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) found.push(`page is ${wide} px too wide`);
  for (const node of document.querySelectorAll('.scroll')) {
    const hidden = node.scrollWidth - node.clientWidth;
    if (hidden > 0) found.push(`${hidden} px out of sight: ${node.getAttribute('aria-label')}`);
  }
  for (const node of document.querySelectorAll('svg text')) {
    const svg = node.closest('svg'), frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const box = node.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const px = parseFloat(getComputedStyle(node).fontSize) * scale;
    const name = `${node.textContent} in ${svg.getAttribute('aria-label').slice(0, 60)}`;
    if (px < 10.95) found.push(`${px.toFixed(1)} px: ${name}`);
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1) found.push(`cut: ${name}`);
  }
  return found;
}"""


def main() -> int:
    """Take the pictures; return 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--axe", type=Path)
    parser.add_argument("--page", action="append", help="Only this page; repeatable.")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    given.out.mkdir(parents=True, exist_ok=True)
    count = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, report in made_pages().items():
            if given.page and name not in given.page:
                continue
            path = given.out / f"{name}.html"
            path.write_text(report.html(), encoding="utf-8")
            for width in WIDTHS:
                for scheme in SCHEMES:
                    size = {"width": width, "height": 900}
                    page = browser.new_page(viewport=size, color_scheme=scheme)
                    page.goto(path.absolute().as_uri())
                    page.screenshot(path=given.out / f"{name}-{width}-{scheme}.png", full_page=True)
                    page.evaluate(UNFOLD)
                    found = list(page.evaluate(CHECK))
                    if given.axe is not None:
                        page.add_script_tag(path=given.axe)
                        axe = page.evaluate("axe.run()")
                        found += [
                            f"axe: {one['id']}: {one['help']}: {one['nodes'][0]['html'][:150]}"
                            for one in axe["violations"]
                        ]
                    page.close()
                    count += len(found)
                    for line in found:
                        print(f"{name} {width} {scheme}: {line}", flush=True)
        browser.close()
    print(f"{count} findings")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
