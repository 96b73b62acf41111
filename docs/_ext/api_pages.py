"""A page for each group of public names that docs/python.md has, by autodoc.

The build fails where a public name is in no group there, or has no docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

import docutils.nodes
import repository_pages
from docstrings import as_rst
from repository_pages import DOCS, GENERATED
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from tff_algos import partitions

# What public names take and give besides, by the title of their page.
_BESIDES = {
  "What public names take and give": (
    "tff_algos.client_data.Examples",
    "tff_algos.client_work.local_training.LocalResult",
    "tff_algos.partitions.Partition",
    "tff_algos.runtimes.runtime.Runtime",
    "tff_algos.simulation.loop.Result",
    "tff_algos.templates.deployment.DeviceForm",
    "tff_algos.templates.ledger.RoundTraffic",
  ),
  "Splits of a data set over clients": tuple(
    f"tff_algos.partitions.{name}"
    for name in (
      *("partition", "parse", "client_examples", "class_counts"),
      *partitions.NAMES,
    )
  ),
}


def groups(page: str, names: Iterable[str]) -> dict[str, list[str]]:
  """The groups of docs/python.md: what its names are for -> the public ones in it.

  Args:
    page: The page, in Markdown.
    names: The public names.

  Raises:
    ExtensionError: A public name is in no group.
  """
  table = page.partition("## The names")[2]
  left, found = set(names), {}
  for title, cell in re.findall(r"(?m)^\| ([a-z].*?) \| (.*) \|$", table):
    words = re.findall(r"`(\w+)`", cell)
    own = [word for word in dict.fromkeys(words) if word in left]
    left.difference_update(own)
    if own:
      found[title] = own
  if left:
    raise ExtensionError(
      f"docs/python.md has no place for {', '.join(sorted(left))}: name them in a row "
      "of its table."
    )
  return found


def check_docstrings(public: Mapping[str, Any]) -> None:
  """Looks whether each public name has a docstring of its own.

  Raises:
    ExtensionError: Some have none; the message names them.
  """
  missing = []
  for name, value in public.items():
    own = (vars(value).get("__doc__") if isinstance(value, type) else value.__doc__) or ""
    # What dataclasses and named tuples get where nobody has written anything.
    if not own.strip() or own.startswith(f"{name}("):
      missing.append(name)
  if missing:
    raise ExtensionError(f"Without a docstring: {', '.join(sorted(missing))}.")


def _entry(path: str, value: Any) -> str:
  if isinstance(value, types.ModuleType):
    title = f".. rubric:: {path}\n\n"
    return f"{title}.. automodule:: {value.__name__}\n   :members:\n"
  if not isinstance(value, type):
    return f".. autofunction:: {path}\n"
  kind = "exception" if issubclass(value, BaseException) else "class"
  # A field of a named tuple is an attribute that says nothing; the docstring says it.
  fields = [*getattr(value, "_fields", ()), *_properties_said(value)]
  excluded = f"   :exclude-members: {', '.join(fields)}\n" if fields else ""
  return f".. auto{kind}:: {path}\n   :members:\n{excluded}"


def _properties_said(value: type) -> list[str]:
  """Attributes that the class's own docstring describes."""
  said = re.findall(r"(?m)^ {2,4}(\w+): ", inspect.getdoc(value) or "")
  return [name for name in said if name in vars(value)]


def _write(app: Sphinx) -> None:
  import tff_algos

  public = {name: getattr(tff_algos, name) for name in tff_algos.__all__}
  check_docstrings(public)
  page = (DOCS / "python.md").read_text(encoding="utf-8")
  by_title = {
    title: {f"tff_algos.{name}": public[name] for name in names}
    for title, names in groups(page, public).items()
  }
  for title, paths in _BESIDES.items():
    by_title[title] = {path: pydoc.locate(path) for path in paths}
  pages = {}
  for title, entries in by_title.items():
    slug = re.sub(r"\W+", "_", title.lower()).strip("_")
    listed = "\n".join(_entry(path, value) for path, value in entries.items())
    pages[slug] = f"# {title[0].upper()}{title[1:]}\n\n```{{eval-rst}}\n{listed}```\n"
  for slug, text in pages.items():
    repository_pages.write(GENERATED / f"api/{slug}.md", text)
  listed = "\n".join(pages)
  repository_pages.write(
    GENERATED / "api/index.md",
    "# Public names\n\n"
    "Every name of `tff_algos`, by what it is for, with what its docstring says. "
    "[How they go together](../../python.md).\n\n"
    f"```{{toctree}}\n:maxdepth: 2\n\n{listed}\n```\n",
  )
  for old in (GENERATED / "api").glob("*.md"):
    if old.stem not in {*pages, "index"}:
      old.unlink()


def _docstring(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
  from tff_algos.algorithms.registry import ALGORITHMS

  pages = [row.name for row in ALGORITHMS.values() if row.hparams_class is obj]
  if dataclasses.is_dataclass(obj) and isinstance(obj, type) and not pages:
    lines += _fields(obj)
  if what == "property":  # Of which napoleon takes what is before a colon for a type.
    lines[:1] = [re.sub(r"^(`[^`]+`): ", r"\1, ", line) for line in lines[:1]]
  lines[:] = as_rst(lines)
  for page in pages:
    link = f":doc:`options of {page} </reference/algorithms/{page}>`"
    lines += [f"The fields' meanings, ranges and sources: {link}.", ""]


def _signature(
  app: Sphinx,
  what: str,
  name: str,
  obj: Any,
  options: Any,
  signature: str | None,
  returns: str | None,
) -> tuple[str | None, str | None]:
  """Defaults as Python; Sphinx leaves a signature as it is where it cannot read one."""
  if signature:
    signature = re.sub(r"<function (\w+)>", r"\1", signature).replace("<factory>", "...")
  return signature, returns


def _fields(hparams_class: type) -> list[str]:
  """An "Attributes:" section of the hyper-parameters of a class."""
  from tff_algos.hyper_parameters import range_text

  fields = [f for f in dataclasses.fields(hparams_class) if "help" in f.metadata]
  if not fields:
    return []
  said = [
    f"  {f.name}: {f.metadata['help']} {range_text(f)}. Source: {f.metadata['source']}."
    for f in fields
  ]
  return ["", "Attributes:", *said, ""]


def _resolve(
  app: Sphinx, env: BuildEnvironment, node: pending_xref, text: docutils.nodes.Element
) -> Any:
  """Where a type of a signature is described: under its public name, if it has one."""
  if node.get("refdomain") != "py":
    return None
  import tff_algos

  name = node["reftarget"].rpartition(".")[2]
  public = f"tff_algos.{name}"
  if name in tff_algos.__all__ and node["reftarget"] != public:
    domain = env.get_domain("py")
    refdoc, builder = node["refdoc"], app.builder
    return domain.resolve_xref(env, refdoc, builder, "obj", public, node, text)
  # A type that is described nowhere, such as one of TFF's: its name stays. Our own pages
  # have no references to Python's names but those that autodoc makes of signatures.
  return text


def setup(app: Sphinx) -> dict[str, bool]:
  """Writes the pages before any is read, and has docstrings and types understood."""
  app.connect("builder-inited", _write)
  app.connect("autodoc-process-docstring", _docstring, priority=400)  # Before napoleon.
  app.connect("autodoc-process-signature", _signature)
  app.connect("missing-reference", _resolve)
  return {"parallel_read_safe": True}
