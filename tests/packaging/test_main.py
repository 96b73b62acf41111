"""`python -m tff_algos` says what there is, at once."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
import re
import subprocess
import sys

import pytest

from tff_algos import __main__
from tff_algos.algorithms import registry

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(*words: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, *words],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )


@pytest.fixture(scope="module")
def listing() -> list[str]:
  done = _run("-m", "tff_algos")
  assert done.returncode == 0
  assert done.stderr == ""
  return done.stdout.splitlines()


def test_each_algorithm_is_listed_with_builder_source_and_description(listing):
  for row in registry.ALGORITHMS.values():
    [at] = [i for i, line in enumerate(listing) if line.split()[:1] == [row.name]]
    assert listing[at].split(maxsplit=2)[1:] == [row.builder.__name__, row.source]
    assert listing[at + 1].strip() == row.description


def test_versions_are_those_that_are_locked(listing):
  text = (_ROOT / "constraints.txt").read_text(encoding="utf-8")
  locked = dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))
  assert [line.strip() for line in listing[listing.index("versions:") + 1 :]] == [
    f"tff_algos {importlib.metadata.version('tff-algos')}",
    f"TensorFlow {locked['tensorflow']}",
    f"TensorFlow Federated {locked['tensorflow-federated']}",
    f"NumPy {locked['numpy']}",
    f"Python {platform.python_version()}",
  ]


def test_package_that_is_missing_is_said_to_be(monkeypatch, capsys):
  monkeypatch.setattr(__main__, "_PACKAGES", {"TensorFlow": "no-such-package"})
  monkeypatch.setattr(sys, "argv", ["tff_algos"])
  __main__.main()
  assert "  TensorFlow (not installed)\n" in capsys.readouterr().out


def test_lines_fit_a_terminal(listing):
  assert max(map(len, listing)) <= 80


def test_nothing_heavy_is_imported():
  code = (
    "import runpy, sys; sys.argv = ['tff_algos']\n"
    "runpy.run_module('tff_algos', run_name='__main__')\n"
    "heavy = {'jax', 'matplotlib', 'scipy', 'tensorflow.python'}\n"
    "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
  )
  done = _run("-c", code)
  assert done.returncode == 0, done.stderr


def test_word_that_means_nothing_is_refused():
  done = _run("-m", "tff_algos", "fedavg")
  assert done.returncode == 2
  assert "unrecognized arguments: fedavg" in done.stderr
