"""What is said of an import."""

from __future__ import annotations

import os
import pathlib

import pytest

from experiments import importing


@pytest.mark.parametrize(
  "name, shown",
  [(b"/a/labels.gz", "/a/labels.gz"), (b"/a/l\xe4bels.gz", r"/a/l\xe4bels.gz")],
)
def test_names_are_shown_as_text_that_any_terminal_takes(name, shown):
  found = importing._shown(pathlib.Path(os.fsdecode(name)))
  assert found == shown
  found.encode("utf-8")
