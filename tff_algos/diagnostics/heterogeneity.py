"""How unlike the clients' labels are: pictures and a distance of a split.

Everything takes the examples of each class at each client, int64 (clients, classes).
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tff_algos import durable_files
from tff_algos.errors import InputError


def mean_wasserstein_distance(counts: NDArray[np.int64]) -> float:
  """Measures how far the clients' label distributions are from the global one.

  The mean over clients, each counted once, of the 1-D Wasserstein distance over class
  indices between the client's label distribution and that of all clients together: 0
  if all are alike, at most num_classes - 1.

  Source: FedAgg, section VII-A3, names the distance but its formula is lost in our
  text; class indices as positions and the unweighted mean are a convention.

  Args:
    counts: >= 0, shape [clients, classes], the examples of each class.

  Returns:
    The mean distance, in class indices.

  Raises:
    InputError: counts are not a matrix, or a client holds nothing.
  """
  # Here, as every training process imports this module and few measure the distance.
  from scipy import stats

  counts = _check_counts("mean_wasserstein_distance", counts)
  total = counts.sum(axis=0)
  classes = np.arange(counts.shape[1])
  distances = [stats.wasserstein_distance(classes, classes, row, total) for row in counts]
  return float(np.mean(distances))


class Summary(NamedTuple):
  """A split in a line.

  Attributes:
    clients: Their number.
    wasserstein_distance: Their `mean_wasserstein_distance`, in class indices.
    min_size: Examples of the smallest client.
    median_size: Of the median one.
    max_size: Of the largest one.
    min_classes: Classes of the client with the fewest.
    mean_classes: Of the mean client.
    max_classes: Of the client with the most.
  """

  clients: int
  wasserstein_distance: float
  min_size: int
  median_size: float
  max_size: int
  min_classes: int
  mean_classes: float
  max_classes: int


def summarize(counts: NDArray[np.int64]) -> Summary:
  """Measures a split; means are rounded to what a table shows.

  Args:
    counts: >= 0, shape [clients, classes], the examples of each class.

  Raises:
    InputError: counts are not a matrix, or a client holds nothing.
  """
  counts = _check_counts("summarize", counts)
  distance = mean_wasserstein_distance(counts)
  sizes, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
  return Summary(
    len(counts),
    round(distance, 4),
    int(sizes.min()),
    float(np.median(sizes)),
    int(sizes.max()),
    int(classes.min()),
    round(float(classes.mean()), 2),
    int(classes.max()),
  )


# More clients than this are drawn as means of neighbours: columns of the picture would
# be narrower than its pixels.
_MAX_COLUMNS = 200
# Up to this many clients and classes every one is named on its axis, and the numbers
# are written in.
_MAX_NAMED_CLIENTS, _MAX_NAMED_CLASSES = 20, 26
# Of more clients the columns in front would hide those behind.
_MAX_STANDING_CLIENTS = 20


def draw_heat_map(
  counts: NDArray[np.int64],
  path: str | os.PathLike[str],
  title: str,
  counted: str = "examples",
) -> None:
  """Writes a heat map, client x class, with the clients' sizes above it.

  Up to 200 clients are drawn one by one in their own order, coloured by number of
  examples. More are sorted by their most and second most frequent class, then by size;
  each column is the mean of neighbours, and coloured by the classes' shares of a
  client, since a few large clients would leave the others white.

  Args:
    counts: >= 0, shape [clients, classes], the examples of each class.
    path: where to write; the ending chooses the format (.png, .pdf, .svg). The folder
      must exist.
    title: one line above the picture.
    counted: what is counted, in words.

  Raises:
    InputError: counts are not a matrix, or a client holds nothing.
  """
  # Here, as every training process imports this module and few draw. `Figure` instead
  # of pyplot: no global state, no display.
  from matplotlib import figure, ticker

  counts = _check_counts("draw_heat_map", counts)
  num_clients, num_classes = counts.shape
  sizes = counts.sum(axis=1)
  if num_clients <= _MAX_COLUMNS:
    order = np.arange(num_clients)
    cells, cell_label = counts, counted
    client_label = "client"
  else:
    frequent = np.argsort(-counts, axis=1, kind="stable")[:, :2]
    order = np.lexsort((-sizes, frequent[:, -1], frequent[:, 0]))
    cells, cell_label = counts / sizes[:, np.newaxis], "mean share of a client"
    client_label = (
      f"clients by most frequent classes, then size, "
      f"{math.ceil(num_clients / _MAX_COLUMNS)} per column"
    )
  groups = np.array_split(order, min(num_clients, _MAX_COLUMNS))
  columns = np.array([cells[group].mean(axis=0) for group in groups])
  edges = np.cumsum([0] + [len(group) for group in groups]) - 0.5

  map_height = float(np.clip(0.25 * num_classes, 2.5, 6))
  fig = figure.Figure(
    figsize=(float(np.clip(3.5 + 0.5 * num_clients, 7.5, 12)), 2.5 + map_height),
    layout="constrained",
  )
  grid = fig.add_gridspec(2, 1, height_ratios=(1, map_height))
  size_axes = fig.add_subplot(grid[0])
  map_axes = fig.add_subplot(grid[1], sharex=size_axes)
  size_axes.tick_params(labelbottom=False)
  if sizes.min() == sizes.max():
    size_text = f"{sizes[0]:,} {counted} each"
  else:
    size_text = (
      f"{sizes.min():,} to {sizes.max():,} {counted} (median {np.median(sizes):,.0f})"
    )
  fig.suptitle(
    f"{title}\n{num_clients:,} client{'s' * (num_clients > 1)}, {size_text}, "
    f"mean Wasserstein distance {mean_wasserstein_distance(counts):.2f}",
    fontsize="medium",
  ).set_parse_math(False)  # A "$" is a "$".

  size_axes.stairs(
    sizes[order], np.arange(num_clients + 1) - 0.5, fill=True, color="tab:gray"
  )
  # On a linear scale long-tailed sizes show as a few spikes.
  if sizes.max() > 50 * sizes.min():
    size_axes.set_yscale("log")
    size_axes.set_ylim(bottom=0.8 * sizes.min())
  size_axes.set_ylabel(counted)
  size_axes.spines[["top", "right"]].set_visible(False)

  mesh = map_axes.pcolormesh(
    edges, np.arange(num_classes + 1) - 0.5, columns.T, cmap="Blues", vmin=0
  )
  map_axes.set_xlim(-0.5, num_clients - 0.5)
  map_axes.set_xlabel(client_label)
  map_axes.set_ylabel("class")
  few_clients = num_clients <= _MAX_NAMED_CLIENTS
  few_classes = num_classes <= _MAX_NAMED_CLASSES
  for axis, few in ((map_axes.xaxis, few_clients), (map_axes.yaxis, few_classes)):
    axis.set_major_locator(
      ticker.MultipleLocator(1) if few else ticker.MaxNLocator(integer=True)
    )
  if few_clients and few_classes:
    for i, j in np.argwhere(counts):
      map_axes.text(
        i,
        j,
        str(counts[i, j]),
        ha="center",
        va="center",
        fontsize="x-small",
        color="white" if counts[i, j] > 0.6 * counts.max() else "black",
      )
  fig.colorbar(mesh, ax=map_axes, label=cell_label)
  durable_files.save_picture(fig, path)


def draw_columns(
  counts: NDArray[np.int64],
  path: str | os.PathLike[str],
  title: str,
  counted: str = "examples",
) -> None:
  """Writes a picture of columns in space: clients x classes x examples.

  Of more than 20 clients the first 20 are drawn, and the picture says so.

  Source: paper (TWAFL, figure 6, shows its splits so).

  Args:
    counts: >= 0, shape [clients, classes], the examples of each class.
    path: where to write; the ending chooses the format (.png, .pdf, .svg). The folder
      must exist.
    title: one line above the picture.
    counted: what is counted, in words.

  Raises:
    InputError: counts are not a matrix, or a client holds nothing.
  """
  from matplotlib import colormaps, figure, ticker

  counts = _check_counts("draw_columns", counts)
  num_clients, num_classes = counts.shape
  shown = counts[:_MAX_STANDING_CLIENTS]
  fig = figure.Figure(figsize=(8, 6.2))
  axes: Any = fig.add_axes((0.02, 0.02, 0.9, 0.92), projection="3d")
  # An axis as long as it has columns, so that all are square; but neither a thread nor a
  # ribbon, whose other axis has no room for its numbers.
  lengths = [np.clip(count, 6, 20) / 20 for count in shown.shape]
  axes.set_box_aspect((*lengths, 0.45), zoom=1.1 if num_classes <= 10 else 0.95)
  axes.view_init(elev=38, azim=-52)
  colors = colormaps["tab10" if num_classes <= 10 else "turbo"]
  client, label = np.nonzero(shown)
  axes.bar3d(
    client - 0.35,
    label - 0.35,
    0,
    0.7,
    0.7,
    shown[client, label],
    color=colors(label if num_classes <= 10 else label / (num_classes - 1)),
    edgecolor=(0, 0, 0, 0.4),
    linewidth=0.3 if num_classes <= 20 else 0.1,
  )
  axes.set_xlabel("client", labelpad=8)
  axes.set(
    ylabel="class",
    zlabel=counted,
    xlim=(-0.6, len(shown) - 0.4),
    ylim=(-0.6, num_classes - 0.4),
    zlim=(0, shown.max()),
  )
  axes.xaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
  axes.yaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
  axes.zaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
  few = len(shown) < num_clients
  which = f"the first {len(shown)} of {num_clients:,} clients" if few else "all clients"
  fig.suptitle(f"{title}\n{which}", fontsize="medium").set_parse_math(False)
  durable_files.save_picture(fig, path)


def _check_counts(name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
  counts = np.asarray(counts)
  if counts.ndim != 2 or not counts.size or (counts.sum(axis=1) <= 0).any():
    raise InputError(
      f"{name}: counts must have shape [clients, classes] and every client an example, "
      f"but the shape is {counts.shape} or a row is empty: give what "
      "tff_algos.partitions.class_counts returns."
    )
  if not (counts >= 0).all():
    raise InputError(
      f"{name}: counts must be numbers >= 0, but {counts[~(counts >= 0)][0]} is one of "
      "them: give what tff_algos.partitions.class_counts returns."
    )
  return counts
