"""Tables in Markdown."""

from __future__ import annotations

from experiments import markdown


def test_columns_are_under_one_another():
  assert markdown.table(["a", "number"], [["x", "1"], ["long name", "12"]]) == (
    "| a         | number |\n"
    "| --------- | ------ |\n"
    "| x         | 1      |\n"
    "| long name | 12     |"
  )


def test_numbers_are_set_to_the_right():
  assert markdown.table(["a", "n"], [["x", "1"], ["y", "1,234"]], right=[1]) == (
    "| a   |     n |\n| --- | ----: |\n| x   |     1 |\n| y   | 1,234 |"
  )


def test_table_without_rows_is_its_head():
  assert markdown.table(["a", "b"], []) == "| a   | b   |\n| --- | --- |"


def test_three_digits_are_shown_also_of_what_is_small():
  shown = {
    0.0312: "0.0312",
    8.7744: "8.77",
    9.996: "10.0",
    17.55: "17.6",
    99.96: "100",
    123.4: "123",
    42935.2: "42,935",
    0.0: "0.00",
  }
  for value, text in shown.items():
    assert f"{value:{markdown.three_digits(value)}}" == text


def test_a_bar_does_not_end_its_cell():
  assert markdown.table(["name"], [["a|b"]]) == "| name |\n| ---- |\n| a\\|b |"
