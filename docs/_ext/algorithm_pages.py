"""A page for each algorithm of the registry, and one of all that was measured.

A page says what the module, the options, the process and the runs of results/ say; what
an algorithm computes is its section of docs/algorithms.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import measured
import repository_pages
import traffic
from docstrings import as_markdown
from repository_pages import DOCS, GENERATED, ROOT
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_PAGE = "docs/algorithms.md"
_SPEED = ROOT / "results/benchmark/algorithms/summary.jsonl"


def sections(text: str) -> dict[str, str]:
  """The sections of docs/algorithms.md: heading -> text below it."""
  parts = re.split(r"(?m)^## (.*)$", text)
  return dict(zip(parts[1::2], (part.strip() for part in parts[2::2])))


def _plain(name: str) -> str:
  return re.sub(r"[^a-z0-9]", "", name.lower())


def section_of(name: str, module_rows: Iterable[str], headings: Iterable[str]) -> str:
  """The heading of the section that says what an algorithm computes.

  It is the one with the algorithm's name in it, or that of another of its module.

  Raises:
    ExtensionError: There is none.
  """
  names = {_plain(w): h for h in headings for w in re.split(r", | and ", h)}
  for row in (name, *module_rows):
    if row in names:
      return names[row]
  raise ExtensionError(f"{_PAGE} has no section for {name}: give it a heading with it.")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], numbers: int = 0) -> str:
  """A table in Markdown, of which the last `numbers` columns are to the right."""
  rules = ["---"] * (len(head) - numbers) + ["---:"] * numbers
  cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
  return "\n".join(f"| {' | '.join(row)} |" for row in [head, rules, *cells])


def _value(value: Any) -> str:
  if value is None:
    return "inf"
  return f"{value:.6g}" if isinstance(value, float) else str(value)


def options(hparams_class: type) -> str:
  """The table of an algorithm's hyper-parameters, of a class that site.css knows."""
  from tff_algos.hyper_parameters import range_text

  rows = [
    (
      f"`{field.name}`",
      f"`{_value(field.default)}`" if _value(field.default) else "empty",
      range_text(field),
      field.metadata["help"] + (" †" if field.metadata["tunable"] else ""),
      field.metadata["source"],
    )
    for field in dataclasses.fields(hparams_class)
  ]
  text = table(("name", "default", "range", "meaning", "source"), rows)
  return f"```{{table}}\n:class: options\n\n{text}\n```"


def crossing(rounds: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
  """The table of the bytes of a round, by kind of round and part."""
  kinds = list(rounds)
  head = ["part"]
  parts: dict[str, None] = {}
  for kind in kinds:
    head += [f"{kind} round, {way}" if kind else way for way in ("down", "up")]
    parts |= dict.fromkeys([*rounds[kind]["down"], *rounds[kind]["up"]])
  columns = [rounds[kind][way] for kind in kinds for way in ("down", "up")]
  rows = [[f"`{p}`", *(f"{c[p]:,}" if p in c else "" for c in columns)] for p in parts]
  rows.append(["**all**", *(f"**{sum(c.values()):,}**" for c in columns)])
  return table(head, rows, numbers=len(columns))


def _speeds() -> dict[str, float]:
  """Algorithm -> seconds of a round over those of FedAvg, where they were measured."""
  if not _SPEED.exists():
    return {}
  rows = [json.loads(line) for line in _SPEED.read_text().splitlines()]
  return {row["algorithm"]: row["ratio_to_fedavg"] for row in rows}


def _cost(name: str, said: Mapping[str, Any], num_weights: int) -> str:
  lines = []
  speed = _speeds().get(name)
  if speed is not None and name != "fedavg":
    lines.append(
      f"A round of MNIST's CNN took {speed:.2f} times as long as FedAvg's, give or take "
      "0.2 ([how it was measured](../../performance.md#measured))."
    )
  state = said["client_state"][name]
  if state:
    models = state / (4 * num_weights)
    size = "as many as the model" if 0.99 < models < 1.01 else f"{models:.1f} models"
    lines.append(f"A client keeps {state:,} bytes from round to round: {size}.")
  else:
    lines.append("A client keeps nothing from round to round.")
  lines.append(
    "What else it costs, beside FedAvg: [Speed and memory](../../performance.md)."
  )
  return "\n".join(lines)


def page(name: str, row: Any, said: Mapping[str, Any], runs: Sequence[Any]) -> str:
  """The page of one algorithm, in Markdown."""
  module = importlib.import_module(row.builder.__module__)
  # Of rows that share a builder, the module is the one that declares them.
  text = (ROOT / _PAGE).read_text(encoding="utf-8")
  found = sections(text)
  same = [r.name for r in getattr(module, "ALGORITHMS", ())]
  heading = section_of(name, same, found)
  body = re.sub(r"(?m)^### ", "#### ", found[heading])
  place = f"docs/reference/algorithms/{name}.md"
  body = repository_pages.relink(body, _PAGE, place)
  anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
  needs = [
    option
    for option in inspect.signature(row.builder).parameters
    if option in ("num_clients", "num_examples")
  ]
  given = "".join(f", {option}=..." for option in needs)
  measured_runs = measured.table_of(name, runs)
  model_bytes = f"{4 * said['weights']:,}"
  return f"""# {name}

**{row.description}** Source: {row.source}.

{as_markdown(inspect.getdoc(module) or "")}

On the command line and from Python:

```sh
uv run python binaries/train.py --algorithm={name}
```

```python
hparams = tff_algos.{row.hparams_class.__name__}()
process = tff_algos.{row.builder.__name__}(model, hparams{given})
```

## What it computes

From [The algorithms](../../algorithms.md#{anchor}), where the marks *paper*, *derived*,
*code*, *recalled* and *convention* and the notation are explained.

{body}

## Options

{options(row.hparams_class)}

† can be changed between rounds by `process.set_hparams`, without tracing again. On the
command line a flag of its own takes each: `binaries/train.py
--algorithm={name} --help`.

## Bytes of a round

For one client and round of the digits task's model ({said["weights"]:,} weights,
{model_bytes} bytes), with the default options, as `process.traffic` counts them:

{crossing(said["rounds"][name])}

## Cost

{_cost(name, said, said["weights"])}

## What we measured

{measured_runs}

## The builder

```{{eval-rst}}
.. autofunction:: tff_algos.{row.builder.__name__}
   :no-index:
```

Its hyper-parameters, with the fields above:
{{py:obj}}`tff_algos.{row.hparams_class.__name__}`.
"""


def _write(app: Sphinx) -> None:
  from tff_algos.algorithms.registry import ALGORITHMS

  said = traffic.read(DOCS / "_build")
  runs = measured.read()
  rows = []
  for name, row in ALGORITHMS.items():
    repository_pages.write(
      GENERATED / f"algorithms/{name}.md", page(name, row, said, runs)
    )
    rows.append((f"[{name}]({name}.md)", row.description, row.source))
  pages = "\n".join(ALGORITHMS)
  repository_pages.write(
    GENERATED / "algorithms/index.md",
    "# A page for each algorithm\n\n"
    "What it computes, its options, the bytes of a round, what was measured with it, and "
    "its builder. Which one to take: "
    "[Which algorithm for what](../../which_algorithm.md).\n\n"
    f"{table(('name', 'what it does', 'source'), rows)}\n\n"
    f"```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
  )
  known = {f"{name}.md" for name in (*ALGORITHMS, "index")}
  for old in (GENERATED / "algorithms").glob("*.md"):
    if old.name not in known:
      old.unlink()
  repository_pages.write(GENERATED / "measured.md", measured.page(runs))


def setup(app: Sphinx) -> dict[str, bool]:
  """Writes the pages before any is read."""
  assert app.srcdir == DOCS or str(app.srcdir) == str(DOCS)
  app.connect("builder-inited", _write)
  return {"parallel_read_safe": True}
