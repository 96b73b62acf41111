"""The Markdown pages: every relative link leads somewhere."""

from __future__ import annotations

import pathlib
import re
import urllib.parse

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGES = [
  page.relative_to(_ROOT)
  for pattern in ("*.md", "docs/*.md", "results/**/*.md")
  for page in sorted(_ROOT.glob(pattern))
]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def _anchors(page: pathlib.Path) -> set[str]:
  """The anchors that GitHub makes of a page's headings."""
  headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
  return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", _PAGES, ids=str)
def test_links_lead_somewhere(page):
  text = re.sub(r"(?s)```.*?```", "", (_ROOT / page).read_text(encoding="utf-8"))
  wrong = []
  for link in _LINK.findall(text):
    target, _, anchor = urllib.parse.unquote(link).partition("#")
    if "://" in target:
      continue
    place = (_ROOT / page).parent / target if target else _ROOT / page
    if not place.exists() or (anchor and anchor not in _anchors(place)):
      wrong.append(link)
  assert not wrong
