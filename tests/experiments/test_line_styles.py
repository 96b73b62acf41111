"""Lines of one frame."""

from __future__ import annotations

import itertools
import math

from experiments.line_styles import band_style, line_style


def test_twenty_lines_have_colours_of_their_own():
  colors = [line_style(place)["color"] for place in range(20)]
  # Of two colours some channel differs by what an eye sees side by side, 10 of 256.
  for one, other in itertools.combinations(colors, 2):
    assert max(abs(a - b) for a, b in zip(one, other)) > 10 / 256


def test_forty_lines_are_told_apart_by_colour_and_dashes():
  styles = [line_style(place) for place in range(40)]
  assert len({(style["color"], style["linestyle"]) for style in styles}) == 40
  for place in range(10):  # A light colour is never with the dashes of its full one.
    dashes = [line_style(place + 10 * k)["linestyle"] for k in range(4)]
    assert len(set(dashes)) == 4


def test_the_first_line_shows_where_another_lies_upon_it():
  first, *others = (line_style(place)["linewidth"] for place in range(40))
  assert first > 1.5 * max(others)


def test_bands_upon_one_another_leave_the_lines_in_sight():
  for lines in range(1, 41):
    seen = [1 - band_style(place, lines)["alpha"] for place in range(lines)]
    assert math.prod(seen) > 0.4 and max(seen) < 1
  assert band_style(3, 9)["color"] == line_style(3)["color"]
