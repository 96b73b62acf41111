"""What recovered pictures look like: a table, a picture, and where each is kept."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments import markdown
from tff_algos import durable_files

_MOST_DRAWN = 32


def picture_path(out: str, what: str, example: int) -> str:
  """Where the picture is that an algorithm gave away, or the "original"."""
  return os.path.join(out, f"{what}_{example:06d}.npy")


def table(rows: Sequence[Mapping[str, str]], algorithms: Sequence[str]) -> str:
  """The means of each algorithm's pictures as a Markdown table."""
  head = ["algorithm", "pictures", "mean PSNR (dB)", "mean SSIM", "median seconds"]
  lines = []
  for name in algorithms:
    own = [row for row in rows if row["algorithm"] == name]
    psnr, ssim, seconds = (
      [float(row[column]) for row in own] for column in ("psnr", "ssim", "seconds")
    )
    means = f"{statistics.fmean(psnr):.2f}", f"{statistics.fmean(ssim):.3f}"
    lines.append([name, str(len(own)), *means, f"{statistics.median(seconds):.1f}"])
  return markdown.table(head, lines, right=range(1, len(head)))


def draw(
  out: str, rows: Sequence[Mapping[str, str]], algorithms: Sequence[str], title: str
) -> None:
  """Draws grid.png: the originals, then a row for each algorithm with its PSNR.

  Of many pictures the first `_MOST_DRAWN`.
  """
  examples = list(dict.fromkeys(int(row["example"]) for row in rows))[:_MOST_DRAWN]
  psnr = {(row["algorithm"], int(row["example"])): float(row["psnr"]) for row in rows}
  lines = ["original", *algorithms]
  size = (1.2 + 1.35 * len(examples), 0.5 + 1.6 * len(lines))
  figure = Figure(figsize=size, layout="constrained")
  grid = figure.subplots(len(lines), len(examples), squeeze=False)
  for line, axes_of_line in zip(lines, grid):
    for example, axes in zip(examples, axes_of_line):
      picture = np.load(picture_path(out, line, example))
      pixels = picture[:, :, 0] if picture.shape[2] == 1 else picture
      axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
      axes.set(xticks=[], yticks=[])
      if line != "original":
        axes.set_xlabel(f"{psnr[line, example]:.1f} dB", fontsize=9)
    axes_of_line[0].set_ylabel(line, fontsize=10)
  figure.suptitle(title, fontsize=10).set_parse_math(False)  # A "$" is a "$".
  durable_files.save_picture(figure, os.path.join(out, "grid.png"), dpi=150)
