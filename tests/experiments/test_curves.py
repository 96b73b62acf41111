"""Running means, and what a closer look at curves shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments import curves


def test_running_mean_is_of_the_values_around_each():
  values = [1.0, 2.0, 6.0, 3.0, 8.0]
  assert curves.running_mean(values, 3) == [1.5, 3.0, 11 / 3, 17 / 3, 5.5]
  assert curves.running_mean(values, 2) == [1.0, 1.5, 4.0, 4.5, 5.5]
  assert curves.running_mean(values, 4) == [1.5, 3.0, 3.0, 4.75, 17 / 3]
  assert curves.running_mean(values, 1) == values
  assert curves.running_mean([], 3) == []


def _limits(*lines):
  axes = Figure().subplots()
  curves.look_closer(axes, lines)
  return axes.get_xlim(), axes.get_ylim()


def test_closer_look_is_at_the_second_half_and_near_the_highest():
  # Of rounds 1 to 9 the second half is 5 to 9, where the lines are at 80 to 90 %.
  high = list(range(1, 10)), [10, 20, 30, 40, 80, 84, 86, 88, 90]
  (left, right), (bottom, top) = _limits(high)
  assert left == 5 and 9 < right < 9.2
  assert (bottom, top) == (79.5, 90.5)
  # A line that is far below does not stretch it, nor does what is no number.
  for low in ([1, 9], [20, 30]), ([1, 9], [math.nan, math.nan]):
    (_, _), (bottom, top) = _limits(high, low)
    assert top - bottom <= 1.1 * curves.CLOSE and top > 90


def test_closer_look_goes_down_to_where_a_line_ends():
  high = [1, 5, 9], [10, 90, 90]
  ends_lower = [1, 5, 9], [10, 50, 70]
  assert _limits(high, ends_lower)[1] == (70 - 1, 90 + 1)
  falls = [1, 5, 9], [10, 88, 72]
  assert _limits(high, falls)[1] == (72 - 0.9, 90 + 0.9)
  collapsed = [1, 5, 9], [10, 80, 59]
  assert _limits(high, ends_lower, collapsed)[1] == (69, 91)
  assert _limits(high, collapsed)[1] == (75 - 0.75, 90 + 0.75)


def test_of_what_is_no_accuracy_the_whole_second_half_is_shown():
  axes = Figure().subplots()
  loss = [1, 5, 9], [4.0, 0.5, 0.25]
  curves.look_closer(axes, [loss], is_accuracy=False)
  assert axes.get_ylim() == pytest.approx((0.25 - 0.0125, 0.5 + 0.0125))
  curves.look_closer(axes, [([1], [0.5])], is_accuracy=False)  # Leaves it as it is.
  assert axes.get_ylim() == pytest.approx((0.25 - 0.0125, 0.5 + 0.0125))


def test_a_flat_line_and_none_have_a_frame():
  assert _limits(([1, 2], [50, 50]))[1] == (48.95, 50.05)
  assert _limits(([3], [50.0]))[1] == (48.95, 50.05)
  assert _limits(([1], [math.inf])) == _limits()


def test_ticks_are_round_and_not_behind_the_last_round():
  axes = Figure().subplots()
  axes.set_xlim(55, 109)  # Behind it stand the papers' points.
  curves.mark_rounds(axes, 100)
  assert list(axes.get_xticks()) == [60, 70, 80, 90, 100]
  assert axes.get_xlim() == (55, 109)


def test_ticks_of_few_rounds_are_whole():
  axes = Figure().subplots()
  # All of three rounds, the second half of two, and one.
  for limits, last, ticks in (
    ((0.9, 3.1), 3, [1, 2, 3]),
    ((1.5, 2.02), 2, [2]),
    ((0.95, 1.05), 1, [1]),
  ):
    axes.set_xlim(*limits)
    curves.mark_rounds(axes, last)
    assert list(axes.get_xticks()) == ticks


def test_ticks_of_many_rounds_are_few():
  axes = Figure().subplots()
  axes.set_xlim(950, 1928)
  curves.mark_rounds(axes, 1900)
  assert list(axes.get_xticks()) == [1000, 1200, 1400, 1600, 1800]


@pytest.mark.parametrize(
  "limits, numbers",
  [
    ((2.0, 18.6), "2 5 10"),
    ((0.011, 23), "0.1 1 10"),
    ((0.9, 51), "1 10"),
    ((4.1, 9.2), "6 8"),
    ((0.4, 0.62), "0.4 0.5 0.6"),
    ((1e-5, 1e5), "1e-05 0.001 0.1 10 1000 100000"),
  ],
)
def test_logarithmic_ticks_are_few_and_round(limits, numbers):
  axes = Figure().subplots()
  axes.set_xscale("log")
  axes.set_xlim(*limits)
  curves.mark_logarithms(axes)
  shown = [text.get_text() for text in axes.get_xticklabels(which="both")]
  assert [text for text in shown if text] == numbers.split()
  np.testing.assert_allclose(axes.get_xticks(), [float(n) for n in numbers.split()])
  assert axes.get_xlim() == limits


@pytest.mark.parametrize("count, rows", [(1, 1), (3, 1), (9, 3)])
def test_legend_below_has_even_rows_within_the_picture(count, rows):
  """There is room for three names of thirty letters and their lines, and not for four."""
  picture = Figure((12, 4), layout="constrained")
  axes = picture.subplots()
  names = [f"_{k} $^ " + "n" * 30 for k in range(count)]
  curves.add_legend_below(picture, [axes.plot([1, 2])[0] for _ in names], names)
  picture.draw_without_rendering()
  [legend] = picture.legends
  assert [text.get_text() for text in legend.get_texts()] == names
  box, frame = legend.get_window_extent(), axes.get_tightbbox()
  assert 0 <= box.x0 < box.x1 <= picture.bbox.width and 0 <= box.y0 < box.y1 < frame.y0
  assert len({text.get_window_extent().y0 for text in legend.get_texts()}) == rows
  assert frame.height > 0.9 * 400
