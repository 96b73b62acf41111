"""Runs beside the first of them, round by round."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Optional

from experiments import markdown
from experiments.report.comparison import Measure
from experiments.report.repeats import group
from experiments.run_folder.reading import Run
from tff_algos.errors import InputError

#: The first and the last of some rounds; None: to the end.
Span = tuple[int, Optional[int]]

ALL: Span = (1, None)


def parse_rounds(words: Sequence[str]) -> list[Span]:
  """Reads what `--differences` names.

  Args:
    words: Each "all", or the first and the last of some rounds, such as "21-30".

  Returns:
    A span of each; `ALL` for all.

  Raises:
    InputError: One is neither, or there is none.
  """
  found: list[Span] = []
  for word in words:
    numbers = re.fullmatch(r"(\d+)-(\d+)", word)
    first, last = map(int, numbers.groups()) if numbers else (0, 0)
    if word != "all" and not 1 <= first <= last:
      break
    found.append(ALL if word == "all" else (first, last))
  if not words or len(found) < len(words):
    raise InputError(
      f"differences is {','.join(words)!r}: give all, or rounds such as 21-30, or "
      "several of these."
    )
  return found


def table(runs: Sequence[Run], spans: Sequence[Span], measure: Measure) -> str:
  """Each run less the first with its seed, in Markdown.

  Args:
    runs: As `measure.of` gives them; those that differ from the first in their seed alone
      are what the others are compared with.
    spans: As `parse_rounds` gives them; of each the mean of the differences.
    measure: What they are compared by.

  Raises:
    InputError: There is nothing to compare, or no round of a span is in two runs.
  """
  first, *others = group(runs)
  if not others:
    raise InputError("differences are of two settings and more: give more runs.")
  base = {run.flags.get("seed"): run for run in first.runs}
  rows = []
  for run in (run for each in others for run in each.runs):
    than = base.get(run.flags.get("seed"))
    if than is None:
      raise InputError(
        f"differences are of runs with the same seed: {run.folder} has "
        f"{run.flags.get('seed')}, and {first.mean.name} no such run."
      )
    rows.append(_line(run, than, spans, measure))
  head = ["run", "rounds above", "level", "below", *map(_words, spans)]
  points = ", in points" if measure.is_accuracy else ""
  said = f"Less {first.mean.name} with the same seed: {measure.words}{points}, means."
  return f"{said}\n\n{markdown.table(head, rows)}"


def _line(run: Run, than: Run, spans: Sequence[Span], measure: Measure) -> list[str]:
  before = dict(zip(than.rounds, than.values))
  found = {t: v - before[t] for t, v in zip(run.rounds, run.values) if t in before}
  signs = [(d > 0) - (d < 0) for d in found.values()]
  line = [run.name, *(str(signs.count(sign)) for sign in (1, 0, -1))]
  form = ".2f" if measure.is_accuracy else ".4g"
  for first, last in spans:
    inside = [d for t, d in found.items() if first <= t <= (last or t)]
    if not inside:
      raise InputError(
        f"{run.folder} and {than.folder} have no values in {_words((first, last))} of "
        "both: give others."
      )
    line.append(f"{statistics.mean(inside):+{form}}")
  return line


def _words(span: Span) -> str:
  return "all rounds" if span == ALL else f"rounds {span[0]} to {span[1]}"
