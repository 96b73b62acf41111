"""The site of docs/: it builds, and does not where something public is not described.

By name only, with what makes it: `uv run --group docs pytest -m site tests/test_site.py`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOCS = _ROOT / "docs"

pytestmark = pytest.mark.site


@pytest.fixture(scope="module", autouse=True)
def extensions():
  """The modules of docs/_ext can be imported."""
  sys.path.insert(0, str(_DOCS / "_ext"))
  yield
  sys.path.remove(str(_DOCS / "_ext"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
  out = tmp_path_factory.mktemp("site") / "html"
  done = subprocess.run(
    [sys.executable, "-m", "sphinx", "-q", "-W", str(_DOCS), str(out)],
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=900,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return out


def _page(site: pathlib.Path, name: str) -> str:
  return (site / f"{name}.html").read_text(encoding="utf-8")


def test_each_algorithm_has_a_page_with_all_its_options(site):
  from tff_algos.algorithms.registry import ALGORITHMS

  for name, row in ALGORITHMS.items():
    page = _page(site, f"reference/algorithms/{name}")
    for field in dataclasses.fields(row.hparams_class):
      assert f">{field.name}<" in page, f"{name} does not say {field.name}"
    assert f'<span class="pre">{row.builder.__name__}</span>' in page


def test_bytes_of_scaffold_are_two_models_each_way(site):
  """The CNN has 10 * 16 + 145 * 32 + 129 * 64 + 650 = 13,706 weights of 4 bytes."""
  page = _page(site, "reference/algorithms/scaffold")
  assert page.count("54,824") >= 4
  assert "13,706" in page


def test_each_public_name_can_be_linked_to(site):
  import tff_algos

  pages = [path.read_text() for path in (site / "reference/api").glob("*.html")]
  for name in tff_algos.__all__:
    place = "module-" if isinstance(getattr(tff_algos, name), types.ModuleType) else ""
    path = getattr(tff_algos, name).__name__ if place else f"tff_algos.{name}"
    assert sum(f'id="{place}{path}"' in page for page in pages) == 1, name


def test_signatures_are_set_out(site):
  """In one that it cannot read, Sphinx leaves `~tff_algos.models.functional.Model`."""
  for path in (site / "reference").rglob("*.html"):
    left = re.findall(r"~\w+\.\w+|&lt;(?:factory|function)\b", path.read_text())
    assert not left, path


def test_runs_say_what_their_data_are(site):
  assert "JPEG CIFAR-10" in _page(site, "reference/algorithms/fedgg")
  assert "HAPT windows" in _page(site, "reference/algorithms/twafl")


def test_a_cell_that_was_run_with_several_seeds_is_measured_once():
  import measured

  cells = {p.parent for p in (_ROOT / "results").glob("*/runs/*/seed1")}
  shown = [(run.paper, run.name) for run in measured.read()]
  assert cells and {(c.parents[1].name, c.name) for c in cells} <= set(shown)
  assert len(shown) == len(set(shown))


def test_formulas_are_mathml(site):
  """Every one of a notebook; outside of code no page shows the dollars around one."""
  for notebook in (_DOCS / "tutorials").glob("*.ipynb"):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    formulas = re.findall(r"(?s)(\$\$?)[^$]+\1", "\n\n".join(texts))
    page = _page(site, f"tutorials/{notebook.stem}")
    assert page.count("</math>") == len(formulas), notebook.stem
  for path in site.rglob("*.html"):
    page = path.read_text(encoding="utf-8")
    assert "$" not in re.sub(r"(?s)<(pre|code|script|style)\b.*?</\1>", "", page), path


def test_nothing_is_fetched(site):
  """No script, style, font or picture has an address elsewhere."""
  for page in site.rglob("*.html"):
    text = page.read_text(encoding="utf-8")
    fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"(\w+:)?//", text)
    fetched += re.findall(r"<link[^>]+rel=\"stylesheet\"[^>]+href=\"(\w+:)?//", text)
    assert not fetched, page


# --- What makes it fail -----------------------------------------------------------------


def test_a_name_without_docstring_is_refused():
  import api_pages
  from sphinx.errors import ExtensionError

  def described():
    """It is."""

  api_pages.check_docstrings({"described": described})
  with pytest.raises(ExtensionError, match=r"Without a docstring: Given, bare\."):
    given = types.new_class("Given", (tuple,))  # It has tuple's alone.
    api_pages.check_docstrings(
      {"described": described, "bare": lambda: None, "Given": given}
    )


def test_a_name_in_no_group_is_refused():
  import api_pages
  from sphinx.errors import ExtensionError

  page = "## The names\n\n| for | names |\n|---|---|\n| data | `a`; `b`, `a` |\n"
  assert api_pages.groups(page, ["b", "a"]) == {"data": ["a", "b"]}
  with pytest.raises(ExtensionError, match="no place for c:"):
    api_pages.groups(page, ["a", "b", "c"])


def test_an_algorithm_without_a_section_is_refused():
  import algorithm_pages
  from sphinx.errors import ExtensionError

  headings = ["FedAvg, SGD", "FedReg and FedReg with modified gradients"]
  find = algorithm_pages.section_of
  assert find("sgd", ["fedsgd", "sgd"], headings) == headings[0]
  assert find("fedreg_mg", ["fedreg", "fedreg_mg"], headings) == headings[1]
  with pytest.raises(ExtensionError, match="no section for fednova"):
    find("fednova", ["fednova"], headings)


# --- Links and docstrings ---------------------------------------------------------------


def test_links_out_of_docs_lead_to_copies_or_nowhere():
  import repository_pages

  def relink(text):
    return repository_pages.relink(text, "docs/tff.md", "docs/tff.md")

  assert relink("[x](../CONTRIBUTING.md#traps)") == "[x](reference/contributing.md#traps)"
  assert relink("[x](../results/fedagg/readings)") == "x"
  assert relink("[x](python.md#the-names)") == "[x](python.md#the-names)"
  assert relink("[x](https://example.org/)") == "[x](https://example.org/)"
  picture = "![x](../results/fedgg/figure2.png)"
  assert relink(picture) == picture
  code = "```\n[x](../CONTRIBUTING.md)\n```"
  assert relink(code) == code


def test_formulas_of_docstrings_stay_as_they_are():
  import docstrings

  lines = ["Steps |w| * l_ of 1@A by `a\\b`:", "", "    v = m_ * v", "", "Then `c", "d`."]
  assert docstrings.as_rst(lines) == [
    r"Steps \|w\| \* l\_ of 1\@A by ``a\b``::",
    "",
    "    v = m_ * v",
    "",
    "Then ``c d``.",
  ]
  assert docstrings.as_markdown("a_i * `x_*`") == r"a\_i \* `x_*`"
