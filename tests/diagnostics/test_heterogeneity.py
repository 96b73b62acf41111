"""The distance of a split by hand, and what its pictures show."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import figure, image
from mpl_toolkits.mplot3d import axes3d, proj3d

from tff_algos.diagnostics import heterogeneity
from tff_algos.errors import InputError


def _dirichlet_counts(num_clients: int) -> np.ndarray:
  """About 60,000 examples in 10 classes; every client has some."""
  rng = np.random.default_rng(0)
  shares = rng.dirichlet(np.full(10, 0.5), num_clients)
  return rng.poisson(60_000 / num_clients * shares)


@pytest.mark.parametrize(
  ("counts", "expected"),
  [
    ([[3, 3, 3], [5, 5, 5]], 0.0),
    # Half of the mass moves by one class.
    ([[7, 0], [0, 7]], 0.5),
    # Half of the mass moves by two classes.
    ([[4, 0, 0], [0, 0, 4]], 1.0),
    # Global (3/4, 1/4): the clients are 1/4 and 3/4 away, each client counts once.
    ([[3, 0], [0, 1]], 0.5),
    # Global (4/6, 2/6), not the clients' mean (1/3, 2/3): 1/3, and 2/3 twice.
    ([[4, 0], [0, 1], [0, 1]], 5 / 9),
    ([[2, 1, 0]], 0.0),
  ],
)
def test_mean_wasserstein_distance_by_hand(counts, expected):
  distance = heterogeneity.mean_wasserstein_distance(np.array(counts))
  assert isinstance(distance, float)
  assert distance == pytest.approx(expected, abs=1e-12)


def test_summary_by_hand():
  counts = np.array([[4, 0, 0], [0, 0, 4], [1, 2, 1]])
  # All together (5, 2, 5)/12: from an end 2/12 goes one class far and 5/12 two, 1 in all;
  # of the mixed client, (3, 6, 3)/12, 2/12 goes from the middle to each end: 1/3.
  distance = pytest.approx((1 + 1 + 1 / 3) / 3, abs=1e-4)
  expected = (3, distance, 4, 4.0, 4, 1, pytest.approx(5 / 3, abs=0.01), 3)
  assert heterogeneity.summarize(counts) == expected
  assert heterogeneity.summarize(counts.tolist()) == expected


@pytest.mark.parametrize("counts", [np.zeros((2, 3)), np.ones(3), [[1, 2], [0, 0]]])
def test_measures_refuse_empty_clients(counts, tmp_path):
  with pytest.raises(ValueError, match="every client an example"):
    heterogeneity.mean_wasserstein_distance(counts)
  for draw in (heterogeneity.draw_heat_map, heterogeneity.draw_columns):
    with pytest.raises(ValueError, match="every client an example"):
      draw(counts, tmp_path / "x.png", "")
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [-1, np.nan])
def test_measures_refuse_counts_that_count_nothing(wrong, tmp_path):
  counts = np.array([[2, 3], [wrong, 3]])
  with pytest.raises(InputError, match=rf"numbers >= 0, but {wrong}[^\n]*\.$"):
    heterogeneity.mean_wasserstein_distance(counts)
  for draw in (heterogeneity.draw_heat_map, heterogeneity.draw_columns):
    with pytest.raises(InputError, match="numbers >= 0"):
      draw(counts, tmp_path / "x.png", "")
  assert not list(tmp_path.iterdir())


@pytest.fixture(name="drawn")
def _drawn(monkeypatch):
  """The figures that are saved during a test."""
  figures = []
  save = figure.Figure.savefig

  def savefig(self, *args, **kwargs):
    figures.append(self)
    return save(self, *args, **kwargs)

  monkeypatch.setattr(figure.Figure, "savefig", savefig)
  return figures


@pytest.mark.parametrize("num_clients", [1, 5, 100, 200])
def test_heat_map_shows_every_client(num_clients, drawn, tmp_path):
  counts = _dirichlet_counts(num_clients)
  heterogeneity.draw_heat_map(counts, tmp_path / "a.png", "What it is")
  pixels = image.imread(tmp_path / "a.png")
  assert 500 < pixels.shape[1] < 2000 and pixels.std() > 0.05
  (fig,) = drawn
  size_axes, map_axes, bar_axes = fig.axes
  np.testing.assert_array_equal(
    np.reshape(map_axes.collections[0].get_array(), (10, num_clients)), counts.T
  )
  np.testing.assert_array_equal(
    size_axes.patches[0].get_data().values, counts.sum(axis=1)
  )
  assert "What it is" in fig.get_suptitle()
  assert map_axes.get_xlabel() == "client" and map_axes.get_ylabel() == "class"
  assert bar_axes.get_ylabel() == "examples"
  written = [text.get_text() for text in map_axes.texts]
  expected = counts[counts > 0] if num_clients <= 20 else []
  assert written == [str(count) for count in expected]


def test_heat_map_groups_thousands_of_clients(drawn, tmp_path):
  rng = np.random.default_rng(0)
  counts = np.zeros((5000, 10), int)
  sizes = rng.lognormal(0, 2, 5000).astype(int) + 1
  counts[np.arange(5000), rng.integers(0, 10, 5000)] = sizes
  heterogeneity.draw_heat_map(counts, tmp_path / "a.png", "")
  (fig,) = drawn
  size_axes, map_axes, _ = fig.axes
  columns = np.reshape(map_axes.collections[0].get_array(), (10, 200))
  # Means of shares; one class each, so that all columns but those with a border, at
  # most 9, are a single class.
  np.testing.assert_allclose(columns.sum(axis=0), 1)
  assert np.count_nonzero(columns.max(axis=0) == 1) >= 191
  # By class, then by size, the largest first.
  order = np.lexsort((-sizes, counts.argmax(axis=1)))
  heights = size_axes.patches[0].get_data().values
  np.testing.assert_array_equal(heights, sizes[order])


@pytest.mark.parametrize("num_clients, shown", [(20, 20), (30, 20)])
def test_columns_stand_for_what_the_first_clients_hold(
  num_clients, shown, drawn, tmp_path, monkeypatch
):
  columns = []
  bar3d = axes3d.Axes3D.bar3d

  def record(self, *args, **kwargs):
    columns.append(args)
    return bar3d(self, *args, **kwargs)

  monkeypatch.setattr(axes3d.Axes3D, "bar3d", record)
  counts = _dirichlet_counts(num_clients)
  heterogeneity.draw_columns(counts, tmp_path / "a.png", "What it is")
  (fig,) = drawn
  ((x, y, foot, width, depth, height),) = columns
  assert foot == 0
  standing = np.zeros((shown, 10))
  standing[np.round(x + width / 2).astype(int), np.round(y + depth / 2).astype(int)] = (
    height
  )
  np.testing.assert_array_equal(standing, counts[:shown])
  said = "all clients" if shown == num_clients else "the first 20 of 30 clients"
  assert fig.get_suptitle() == f"What it is\n{said}"


@pytest.mark.parametrize("num_clients", [10, 20])
@pytest.mark.parametrize("num_classes", [10, 20, 100])
def test_columns_have_room_for_the_numbers_of_both_axes(
  num_clients, num_classes, drawn, tmp_path
):
  counts = np.ones((num_clients, num_classes), int)
  heterogeneity.draw_columns(counts, tmp_path / "a.png", "What it is")
  (fig,) = drawn
  (axes,) = fig.axes
  x, y, z = axes.get_xlim(), axes.get_ylim(), axes.get_zlim()
  corners = np.array([*itertools.product(x, y, z)]).T
  across, up, _ = proj3d.proj_transform(*corners, axes.get_proj())
  places = axes.transData.transform(np.stack([across, up], 1)).reshape(2, 2, 2, 2)
  assert (places > 0).all() and (places < [fig.bbox.width, fig.bbox.height]).all()
  for end, axis in ((places[1, 0, 0], axes.xaxis), (places[0, 1, 0], axes.yaxis)):
    low, high = sorted(axis.get_view_interval())
    numbers = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    room = np.linalg.norm(end - places[0, 0, 0]) / len(numbers)
    # Two digits are less wide than they are high twice.
    assert room > 2 * axis.get_ticklabels()[0].get_fontsize() / 72 * fig.dpi


def test_import_and_drawing_load_no_framework_and_no_global_plot(tmp_path):
  program = (
    "import sys, numpy as np\n"
    "from tff_algos.diagnostics import heterogeneity\n"
    "assert 'matplotlib' not in sys.modules and 'scipy' not in sys.modules\n"
    "for draw in (heterogeneity.draw_heat_map, heterogeneity.draw_columns):\n"
    "  draw(np.eye(3, dtype=int), sys.argv[1], 'x')\n"
    "for name in ('tensorflow', 'matplotlib.pyplot'):\n"
    "  assert name not in sys.modules, name\n"
  )
  command = [sys.executable, "-c", program, str(tmp_path / "a.png")]
  subprocess.run(command, check=True)
  assert (tmp_path / "a.png").stat().st_size > 1000


def test_sizes_of_a_summary_by_hand():
  counts = np.array([[4, 0, 0], [0, 0, 7], [1, 2, 10], [1, 0, 0]])
  found = heterogeneity.summarize(counts)
  assert (found.min_size, found.median_size, found.max_size) == (1, 5.5, 13)


def test_heat_map_is_sorted_by_the_second_class_too(monkeypatch, tmp_path):
  drawn = []
  monkeypatch.setattr(
    heterogeneity.durable_files, "save_picture", lambda fig, path: drawn.append(fig)
  )
  # All have most of class 0; the second is 1 or 2, in turn, and all are as large.
  counts = np.tile([[6, 3, 0], [6, 0, 3]], (200, 1))
  heterogeneity.draw_heat_map(counts, tmp_path / "a.png", "")
  columns = np.reshape(drawn[0].axes[1].collections[0].get_array(), (3, 200))
  np.testing.assert_allclose(columns[1, :100], 1 / 3)
  np.testing.assert_allclose(columns[1, 100:], 0)
