"""Writes the state of all papers' results into their pages.

One table for all papers, and three lines for each, between two marks of a page.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from experiments import command_line, markdown
from experiments.tables.cells import Settings
from experiments.tables.model import Build, items_of
from experiments.tables.state import State, state_of
from tff_algos import durable_files
from tff_algos.errors import InputError

BEGIN = "<!-- Written by binaries/state_of_results.py -->"
END = "<!-- Until here -->"

_HEAD = (
  "paper",
  "table or figure",
  "cells run",
  "seeds",
  "share of the rounds",
  "ordered as in the paper",
  "median difference to the paper",
  "why",
)


def start(papers: Mapping[str, Build]) -> None:
  """Runs the program.

  Args:
    papers: The folder of each paper's results to what builds its tables and figures.
  """
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  flags.DEFINE_string("results", "results", "Folder of all papers' results.", **place)
  command_line.start(
    lambda: write(papers, os.path.abspath(os.path.expanduser(flags.FLAGS.results)))
  )


def write(papers: Mapping[str, Build], folder: str) -> None:
  """Writes the table into README.md, and of each paper its state into its own.

  Raises:
    InputError: A run, why.csv or a page cannot be read; nothing is written then.
  """
  states = {}
  for paper, build in papers.items():
    items = items_of(build)
    out = Settings(os.path.join(folder, paper))
    states[paper] = [state_of(item, key, out) for key, item in items.items()]
  why = read_why(os.path.join(folder, "why.csv"), states)
  pages = {os.path.join(folder, "README.md"): table_of(states, why)}
  for paper, of_paper in states.items():
    pages[os.path.join(folder, paper, "README.md")] = lines_of(of_paper)
  texts = {path: _with(path, text) for path, text in pages.items()}
  for path, text in texts.items():
    with durable_files.new_file(path, "w", newline="") as f:
      f.write(text)


def _with(path: str, inner: str) -> str:
  """The text of a page with `inner` between the two marks."""
  try:
    with open(path, encoding="utf-8", newline="") as f:
      before, begin, rest = f.read().partition(BEGIN)
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"{path} cannot be read: {error}.") from error
  _, end, after = rest.partition(END)
  if not begin or not end:
    raise InputError(f"{path} must have a line {BEGIN} and below it a line {END}.")
  return f"{before}{BEGIN}\n\n{inner}\n\n{END}{after}"


def read_why(
  path: str, states: Mapping[str, Sequence[State]]
) -> dict[tuple[str, str], str]:
  """The sentences that are kept by hand, by paper and item.

  Raises:
    InputError: The file cannot be read, or names what there is not.
  """
  known = {(paper, state.key) for paper in states for state in states[paper]}
  try:
    with open(path, encoding="utf-8", newline="") as f:
      rows = [(r["paper"], r["item"], r["why"]) for r in csv.DictReader(f)]
  except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
    said = f"no {error}" if isinstance(error, KeyError) else error
    raise InputError(
      f"{path} must be a CSV file with the columns paper, item and why ({said})."
    ) from error
  found: dict[tuple[str, str], str] = {}
  for paper, item, why in rows:
    if (paper, item) not in known:
      raise InputError(f"{path}: {paper} has no {item}; its names are like table2_cnn.")
    found[paper, item] = why or ""
  return found


def table_of(
  states: Mapping[str, Sequence[State]], why: Mapping[tuple[str, str], str]
) -> str:
  """All tables and figures of all papers, a line each."""
  lines = []
  for paper, of_paper in states.items():
    for state in of_paper:
      name = f"[{state.name}]({paper}/{state.link})" if state.link else state.name
      short, _, about = state.title.partition(", ")
      of_rounds = f"{100 * statistics.median(state.shares):.0f} %" if state.shares else ""
      seeds = sorted({min(state.seeds), max(state.seeds)}) if state.seeds else []
      lines.append(
        [
          f"[{short}]({paper}/README.md)",
          f"{name}: {about.partition(': ')[2]}",
          f"{state.run} of {state.of}" + " calls" * (state.unit == "calls"),
          " to ".join(map(str, seeds)),
          of_rounds,
          _pairs(state),
          state.difference,
          why.get((paper, state.key), ""),
        ]
      )
  return markdown.table(_HEAD, lines)


def _pairs(state: State) -> str:
  if not state.pairs:
    return ""
  if state.alike == state.pairs:
    return "its only pair" if state.pairs == 1 else f"all {state.pairs} pairs"
  return f"{state.alike} of {state.pairs} pair{'s' * (state.pairs > 1)}"


def lines_of(states: Sequence[State]) -> str:
  """What of a paper agrees with it, what differs and what was not run."""

  def named(chosen: Sequence[State], said: Callable[[State], str]) -> str:
    return ", ".join(f"{state.name} ({said(state)})" for state in chosen) or "nothing"

  def agree(state: State) -> str:
    return f"{_pairs(state)} agree{'s' * (state.alike == 1)}"

  def run(state: State) -> str:
    return f"{state.run} of {state.of} {state.unit}"

  alike = [state for state in states if 0 < state.pairs == state.alike]
  other = [state for state in states if state.alike < state.pairs]
  part = [state for state in states if 0 < state.run < state.of]
  rest = [state for state in states if not state.run]
  silent = [state for state in states if state.run == state.of and not state.pairs]
  lines = [
    f"**Agrees, all pairs of rows:** {named(alike, _pairs)}.",
    f"**Differs, some pairs or all:** {named(other, agree)}.",
    f"**Not run:** {_listed(rest)}{f'; in part {named(part, run)}' if part else ''}.",
  ]
  if silent:
    lines.append(f"**Run, with nothing to rank:** {_listed(silent)}.")
  return "\n".join(f"- {line}" for line in lines)


def _listed(states: Sequence[State]) -> str:
  """Names, such as "Tables 1, 3; Figure 2"."""
  numbers: dict[str, list[str]] = {}
  for state in states:
    kind, _, number = state.name.partition(" ")
    numbers.setdefault(kind, []).append(number)
  parts = [f"{k}{'s' * (len(of) > 1)} {', '.join(of)}" for k, of in numbers.items()]
  return "; ".join(parts) or "nothing"
