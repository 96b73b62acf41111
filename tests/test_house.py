"""Rules of the house: who imports whom, what a program is, how long a file may be."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Each may import itself and those before it.
_TREES = ("tff_algos", "tasks", "experiments", "binaries")
_PROGRAMS = [
  "benchmark",
  "compare",
  "evaluate",
  "export",
  "fedagg_tables",
  "fedavg_tables",
  "fedgg_tables",
  "fedreg_tables",
  "forgetting",
  "gradient_inversion",
  "heterogeneity",
  "import_data",
  "lying_clients",
  "report",
  "state_of_results",
  "sweep",
  "train",
  "twafl_tables",
]


def _files(tree: str) -> list[pathlib.Path]:
  return sorted((_ROOT / tree).rglob("*.py"))


def _modules(path: pathlib.Path) -> set[str]:
  """What a file imports, also within its functions: `a.b` for `from a import b` too."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path} imports by a relative name"
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
  return found


def _imported_by(path: pathlib.Path) -> set[str]:
  """The first words of these."""
  return {name.partition(".")[0] for name in _modules(path)}


@pytest.mark.parametrize("tree", _TREES)
def test_imports_run_one_way(tree):
  above = set(_TREES[_TREES.index(tree) + 1 :])
  for path in _files(tree):
    assert not _imported_by(path) & above, path


def test_algorithms_do_not_know_what_runs_them():
  runs = ("tff_algos.runtimes", "tff_algos.simulation")
  for path in _files("tff_algos/algorithms"):
    assert not any(name.startswith(runs) for name in _modules(path)), path


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


def test_nothing_else_is_kept():
  """What a program left in the checkout is not taken into it by a careless `git add`."""
  if not (_ROOT / ".git").exists():
    pytest.skip("not a checkout")
  git = ["git", "-c", "safe.directory=*", "-C", _ROOT, "ls-files"]
  kept = subprocess.run(git, check=True, capture_output=True, text=True).stdout
  folders = {path.partition("/")[0] for path in kept.splitlines() if "/" in path}
  assert folders == {*_TREES, ".ci", "docs", "examples", "results", "tests"}


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


def _run_on_import(body: list[ast.stmt]) -> list[ast.expr]:
  """What a module's import evaluates: all but the bodies of functions."""
  functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
  found, waiting = [], list(ast.iter_child_nodes(ast.Module(body, [])))
  while waiting:
    node = waiting.pop()
    if isinstance(node, ast.Call):
      found.append(node.func)
    if not isinstance(node, functions):
      waiting.extend(ast.iter_child_nodes(node))
  return found


@pytest.mark.parametrize("tree", ["tff_algos", "tasks", "experiments"])
def test_importing_a_module_defines_no_flag(tree):
  """Else a program would have the flags of all that it imports."""
  for path in _files(tree):
    for called in _run_on_import(ast.parse(path.read_text(encoding="utf-8")).body):
      assert not ast.unparse(called).startswith(("flags.DEFINE", "flags.mark")), path


def test_a_flag_defined_by_an_import_is_seen():
  code = "from absl import flags\n_X = flags.DEFINE_string('x', None, '')"
  calls = _run_on_import(ast.parse(code).body)
  assert [ast.unparse(call) for call in calls] == ["flags.DEFINE_string"]


def _forks(code: str) -> list[str]:
  """What of a module forks the process that runs it; the text of a program does not."""
  found = []
  for node in ast.walk(ast.parse(code)):
    if isinstance(node, ast.keyword) and node.arg == "preexec_fn":
      found.append(node.arg)
    elif isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty"):
      found.append(ast.unparse(node))
  return found


@pytest.mark.parametrize("tree", [*_TREES, "tests"])
def test_nothing_forks_its_own_process(tree):
  """Beside gRPC's threads, which TFF's executors use, a fork may abort or hang."""
  for path in _files(tree):
    assert _forks(path.read_text(encoding="utf-8")) == [], path


def test_a_fork_is_seen():
  code = "subprocess.Popen(c, preexec_fn=f); os.fork(); run('os.fork()')"
  assert sorted(_forks(code)) == ["os.fork", "preexec_fn"]


def test_each_deliberate_fault_fits_the_code():
  """Else `plant.py` would find out, minutes later."""
  sys.path.insert(0, str(_ROOT / "tests" / "faults"))
  try:
    from faults import FAULTS
  finally:
    sys.path.pop(0)
  assert len({fault.name for fault in FAULTS}) == len(FAULTS)
  replays = (_ROOT / "tests/conformance/replays.py").read_text(encoding="utf-8")
  for fault in FAULTS:
    text = (_ROOT / fault.path).read_text(encoding="utf-8")
    assert text.count(fault.right) == 1, fault.name
    file, *words = fault.tests
    if words and (_ROOT / file).is_file():  # A test may have been given another name.
      found = replays + (_ROOT / file).read_text(encoding="utf-8")
      missing = {w for w in re.findall(r"\w+", words[-1]) if w not in found}
      assert missing <= {"and", "or", "not"}, f"{fault.name}: -k {words[-1]!r}"
