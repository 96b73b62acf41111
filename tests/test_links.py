"""The Markdown pages and the notebooks: every relative link leads somewhere."""

from __future__ import annotations

import json
import pathlib
import re
import urllib.parse

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Written while the site is built, which looks at them itself.
_BUILT = ("docs/_build/", "docs/reference/")
_PAGES = [
  page.relative_to(_ROOT)
  for pattern in ("*.md", "docs/**/*.md", "docs/**/*.ipynb", "results/**/*.md")
  for page in sorted(_ROOT.glob(pattern))
  if not page.relative_to(_ROOT).as_posix().startswith(_BUILT)
]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def _text(page: pathlib.Path) -> str:
  """What of a page is Markdown."""
  text = page.read_text(encoding="utf-8")
  if page.suffix != ".ipynb":
    return text
  cells = json.loads(text)["cells"]
  return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def _anchors(page: pathlib.Path) -> set[str]:
  """The anchors that GitHub makes of a page's headings."""
  headings = re.findall(r"(?m)^#+ (.*)$", _text(page))
  return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", _PAGES, ids=str)
def test_links_lead_somewhere(page):
  text = re.sub(r"(?s)```.*?```", "", _text(_ROOT / page))
  wrong = []
  for link in _LINK.findall(text):
    target, _, anchor = urllib.parse.unquote(link).partition("#")
    if "://" in target:
      continue
    place = (_ROOT / page).parent / target if target else _ROOT / page
    if not place.exists() or (anchor and anchor not in _anchors(place)):
      wrong.append(link)
  assert not wrong
