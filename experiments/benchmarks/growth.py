"""Draws how a round's seconds and memory grow, from what the benchmark has measured.

  python experiments/benchmarks/growth.py FOLDER

FOLDER holds the `--out` folders of benchmarks of the workloads that grow (`clients_10`,
and so on); growth.png is written into it.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from typing import Any

from matplotlib import figure as figures

from experiments.line_styles import line_style
from tff_algos import durable_files

_GROWS = {
  "clients": "clients in a round",
  "population": "clients there are, 100 in a round",
  "weights": "the model's weights, about",
}
_MEASURED = {"median_seconds": "seconds of a round", "peak_memory_mb": "peak memory, MB"}


def draw(rows: list[dict[str, Any]]) -> figures.Figure:
  """The picture: a column for what grows, a row for what is measured.

  Args:
    rows: Of a benchmark's summary.jsonl; other workloads are left out.
  """
  figure = figures.Figure(figsize=(10, 5.6), layout="constrained")
  frames: Any = figure.subplots(len(_MEASURED), len(_GROWS), sharey="row", sharex="col")
  frameworks = list(dict.fromkeys(row["framework"] for row in rows))
  for column, (kind, label) in enumerate(_GROWS.items()):
    for frame, (field, measured) in zip(frames[:, column], _MEASURED.items()):
      for place, framework in enumerate(frameworks):
        points = sorted(
          (int(row["workload"].partition("_")[2]), row[field])
          for row in rows
          if row["framework"] == framework
          and row["workload"].startswith(f"{kind}_")
          and row["failure"] is None
        )
        if points:
          frame.plot(*zip(*points), marker="o", label=framework, **line_style(place))
      frame.set_xscale("log")
      if field == "median_seconds":
        frame.set_yscale("log")
      frame.grid(alpha=0.3)
      if column == 0:
        frame.set_ylabel(measured)
    frames[-1, column].set_xlabel(label)
  frames[0, 0].legend()
  return figure


def main(folder: str) -> None:
  """Draws what the benchmarks in a folder have measured."""
  rows: list[dict[str, Any]] = []
  for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*", "summary.jsonl"))):
    with open(path, encoding="utf-8") as file:
      rows += map(json.loads, file)
  if not rows:
    sys.exit(f"{folder} holds no folder of a benchmark: give it that of several --out.")
  durable_files.save_picture(draw(rows), os.path.join(folder, "growth.png"))


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("Give one folder, which holds those of benchmarks.")
  main(sys.argv[1])
