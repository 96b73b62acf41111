"""Rules of the house: who imports whom, what a program is, how long a file may be."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Each may import itself and those before it.
_TREES = ("tff_algos", "tasks", "experiments", "binaries")
_PROGRAMS = [
  "benchmark",
  "compare",
  "fedagg_tables",
  "fedavg_tables",
  "fedgg_tables",
  "fedreg_tables",
  "forgetting",
  "gradient_inversion",
  "heterogeneity",
  "import_data",
  "report",
  "train",
  "twafl_tables",
  "worker",
]


def _files(tree: str) -> list[pathlib.Path]:
  return sorted((_ROOT / tree).rglob("*.py"))


def _imported_by(path: pathlib.Path) -> set[str]:
  """The first words of the modules that a file imports, also within its functions."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path} imports by a relative name"
      found.add(node.module or "")
  return {name.partition(".")[0] for name in found}


@pytest.mark.parametrize("tree", _TREES)
def test_imports_run_one_way(tree):
  above = set(_TREES[_TREES.index(tree) + 1 :])
  for path in _files(tree):
    assert not _imported_by(path) & above, path


def test_an_error_that_programs_know_is_one_class():
  """Of another class of its name they would say that it is a defect."""
  classes = [
    (node.name, path.relative_to(_ROOT).as_posix())
    for tree in _TREES
    for path in _files(tree)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.ClassDef)
  ]
  known = {name for name, path in classes if path == "tff_algos/errors.py"}
  assert {"InputError", "UnsupportedComputationError", "WorkerLostError"} <= known
  assert {path for name, path in classes if name in known} == {"tff_algos/errors.py"}


def test_programs_are_those_that_are_known():
  assert [path.stem for path in _files("binaries")] == _PROGRAMS


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program_is_thin(name):
  """It has its flags and one call; what it does is in experiments/."""
  text = (_ROOT / f"binaries/{name}.py").read_text(encoding="utf-8")
  assert 20 <= text.count("\n") <= 150
  assert "sys.path" not in text


@pytest.mark.parametrize("tree", _TREES)
def test_no_file_is_longer_than_400_lines(tree):
  lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in _files(tree)}
  assert {path: n for path, n in lengths.items() if n > 400} == {}


@pytest.mark.parametrize("tree", ["tff_algos", "tasks", "experiments"])
def test_importing_a_module_defines_no_flag(tree):
  """Else a program would have the flags of all that it imports."""
  names = [path.relative_to(_ROOT).with_suffix("") for path in _files(tree)]
  modules = [
    ".".join(name.parts) for name in names if name.name not in ("__init__", "__main__")
  ]
  code = f"""
import importlib
from absl import flags
for name in {modules!r}:
  importlib.import_module(name)
by_module = flags.FLAGS.flags_by_module_dict()
ours = ("tff_algos", "tasks", "experiments", "__main__", "-c")
print({{m: [f.name for f in fs] for m, fs in by_module.items() if m.startswith(ours)}})
"""
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == "{}\n"
