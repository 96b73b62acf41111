"""Pages of the repository that are not in docs/, and links that lead out of docs/.

Links work on GitHub, where every file has an address. On the site the pages of `_COPIES`
are copied to docs/reference/, a link to one of them leads to its copy, and of a link to
anything else outside of docs/ the text stays. A line `<!-- README: Start -->` of a page
is that section of the README; one that names none is what the README begins with.
"""

from __future__ import annotations

import json
import os
import pathlib
import re

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference"

_PAPERS = sorted(page.parent.name for page in (ROOT / "results").glob("*/README.md"))
# Page in the repository -> page of the site, both from the root and without a suffix.
_COPIES = {
  "CHANGELOG": "docs/reference/changelog",
  "CONTRIBUTING": "docs/reference/contributing",
  "results/README": "docs/reference/results/index",
  **{f"results/{name}/README": f"docs/reference/results/{name}" for name in _PAPERS},
}
_PLACES = {"README": "docs/index", **_COPIES}
_ORIGINALS = {place: page for page, place in _COPIES.items()}
_README = re.compile(r"(?m)^<!-- README: (.*?) ?-->$")
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(?ms)^ *```.*?^ *```")


def write(path: pathlib.Path, text: str) -> None:
  """Writes a page of docs/reference/; one that is as it was is not read again."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if not path.exists() or path.read_text(encoding="utf-8") != text:
    path.write_text(text, encoding="utf-8")


def relink(text: str, original: str, place: str) -> str:
  """Makes the links of a page those of the site.

  Args:
    text: Markdown, whose links lead on from where it is in the repository.
    original: The page in the repository, from the root: "results/fedgg/README.md".
    place: Where the site has the text: "docs/reference/results/fedgg.md".
  """

  def follow(link: re.Match[str]) -> str:
    picture, words, path, anchor = link.group(1, 2, 3, 4)
    if not path or ":" in path:
      return link.group(0)
    target = os.path.normpath(os.path.join(os.path.dirname(original), path))
    if not (ROOT / target).exists():
      return link.group(0)  # Sphinx says so.
    stem, suffix = os.path.splitext(target)
    if suffix == ".md" and stem in _PLACES:
      target = f"{_PLACES[stem]}.md"
    elif not picture and not target.startswith("docs/"):
      return words
    way = os.path.relpath(target, os.path.dirname(place))
    return f"{picture}[{words}]({way}{anchor or ''})"

  # What is between blocks of code.
  parts, end = [], 0
  for code in _CODE.finditer(text):
    parts += [_LINK.sub(follow, text[end : code.start()]), code.group(0)]
    end = code.end()
  return "".join([*parts, _LINK.sub(follow, text[end:])])


def _of_readme(heading: str, place: str) -> str:
  """A section of the README as it stands on a page of the site."""
  text = (ROOT / "README.md").read_text(encoding="utf-8")
  begin, *parts = re.split(r"(?m)^(?=## )", text)
  found = {part[3 : part.index("\n")]: part for part in parts}
  if heading and heading not in found:
    raise ExtensionError(f"{place}: README.md has no section {heading!r}.")
  return relink(found[heading] if heading else begin, "README.md", place).strip()


def _copy(app: Sphinx) -> None:
  names = "\n".join(_PAPERS)
  for page, place in _COPIES.items():
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    text = relink(text, f"{page}.md", f"{place}.md")
    if page == "results/README":
      text += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    write(ROOT / f"{place}.md", text)
  limits = _of_readme("Limits", "docs/reference/limits.md")
  write(GENERATED / "limits.md", f"{limits[1:]}\n")


def _relink(app: Sphinx, docname: str, source: list[str]) -> None:
  place = f"docs/{docname}"
  if place in _ORIGINALS:
    return
  text = relink(source[0], place, place)
  if _README.search(text):
    app.env.note_dependency(str(ROOT / "README.md"))
    text = _README.sub(lambda mark: _of_readme(mark.group(1), place), text)
  if app.env.doc2path(docname).endswith(".ipynb"):
    # Cells have IPython's own lines, which are no Python.
    notebook = json.loads(text)
    notebook["metadata"]["language_info"]["pygments_lexer"] = "ipython"
    text = json.dumps(notebook)
  source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
  """Copies the pages and has every page's links followed."""
  app.connect("builder-inited", _copy)
  app.connect("source-read", _relink)
  return {"parallel_read_safe": True}
