"""The BUILD files hold every file; where Bazel is installed, it reads them as we do."""

from __future__ import annotations

import ast
import collections
import pathlib
import shutil
import subprocess
import types
from collections.abc import Iterable
from typing import Any

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ("tff_algos", "tasks", "experiments", "binaries", "examples")
_TREES = (*_PACKAGES, "tests")
_BUILDS = [
  _ROOT / "BUILD",
  *sorted(build for tree in _TREES for build in (_ROOT / tree).rglob("BUILD")),
]
_RUNNER = "tests/bazel_main.py"  # Of every py_test.
_IGNORED = [_ROOT / line for line in (_ROOT / ".bazelignore").read_text().split()]


def _glob(folder: pathlib.Path, patterns: Iterable[str], exclude=(), **_) -> list[str]:
  """As Bazel's, which takes nothing that is below another BUILD."""

  def is_own(path: pathlib.Path) -> bool:
    if any(ignored in path.parents for ignored in _IGNORED):
      return False
    above = [parent for parent in path.parents if folder in parent.parents]
    return path.is_file() and not any((parent / "BUILD").exists() for parent in above)

  found = {path for pattern in patterns for path in folder.glob(pattern) if is_own(path)}
  return sorted({path.relative_to(folder).as_posix() for path in found} - set(exclude))


def _read(build: pathlib.Path) -> list[dict[str, Any]]:
  """The rules of a BUILD: kind, name, srcs, data and deps, all by their full labels."""
  package = build.parent.relative_to(_ROOT).as_posix().rstrip(".")
  rules = []

  def full(label: str) -> str:
    if not label.startswith("//"):
      return f"//{package}:{label.lstrip(':')}"
    return label if ":" in label else f"{label}:{label.rpartition('/')[2]}"

  def rule(kind: str):
    def add(name: str, actual: Any = (), **attributes) -> None:
      named = {key: attributes.get(key, []) for key in ("srcs", "data", "deps")}
      named["deps"] = [*named["deps"], actual] if actual else named["deps"]
      labels = {key: [full(label) for label in named[key]] for key in named}
      rules.append({"kind": kind, "name": full(name), **labels})

    return add

  def glob(patterns: Iterable[str], **options) -> list[str]:
    return _glob(build.parent, patterns, **options)

  kinds = ("py_library", "py_binary", "py_test", "filegroup", "alias")
  silent = ("load", "package", "licenses", "exports_files")
  given: dict[str, Any] = {name: lambda *_, **__: None for name in silent}
  given |= {kind: rule(kind) for kind in kinds} | {"glob": glob}
  native = types.SimpleNamespace(package_name=lambda: package, **given)
  scope = {**given, "native": native}
  for path in (_ROOT / "build_defs.bzl", build):
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
  return rules


def _path(label: str) -> str:
  return label[2:].replace(":", "/").lstrip("/")


@pytest.fixture(scope="module")
def rules() -> dict[str, dict[str, Any]]:
  read = [rule for build in _BUILDS for rule in _read(build)]
  by_name = {rule["name"]: rule for rule in read}
  assert len(by_name) == len(read)
  return by_name


def _kind(path: str) -> str:
  """The rule that a Python file belongs to."""
  if pathlib.PurePosixPath(path).name.startswith("test_"):
    return "py_test"
  programs = ("binaries/", "examples/", "tests/faults/")
  return "py_binary" if path.startswith(programs) else "py_library"


def _files(*trees: str) -> set[str]:
  found = {path for tree in trees for path in (_ROOT / tree).rglob("*")}
  found = {p for p in found if p.is_file() and p.suffix != ".pyc" and p.name != "BUILD"}
  return {path.relative_to(_ROOT).as_posix() for path in found}


def test_each_file_is_in_one_rule(rules):
  listed = collections.Counter(
    (_path(source), rule["kind"])
    for rule in rules.values()
    for source in rule["srcs"]
    if rule["kind"].startswith("py_")
  )
  sources = {path for path in _files(*_TREES) if path.endswith(".py")} - {_RUNNER}
  del listed[_RUNNER, "py_test"]
  assert listed == {(path, _kind(path)): 1 for path in sources}


def test_each_file_beside_the_code_is_data(rules):
  data = {_path(label) for rule in rules.values() for label in rule["data"]}
  assert {path for path in _files(*_PACKAGES) if not path.endswith(".py")} <= data


def test_each_label_is_a_target_or_a_file(rules):
  for name, rule in rules.items():
    for label in (*rule["srcs"], *rule["data"], *rule["deps"]):
      assert label in rules or (_ROOT / _path(label)).is_file(), f"{name}: {label}"


def _runfiles(rules: dict[str, dict[str, Any]], name: str) -> set[str]:
  """The packages whose files a rule finds when it runs."""
  needed = [n for n in rules[name]["data"] + rules[name]["deps"] if n in rules]
  below = (_runfiles(rules, label) for label in needed)
  return set.union({_path(name).partition("/")[0]}, *below)


def _imported(path: str) -> set[str]:
  """The packages that a file imports."""
  names = set()
  for node in ast.walk(ast.parse((_ROOT / path).read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names.add(node.module or "")
  return {name.partition(".")[0] for name in names}


def test_each_import_is_among_the_deps(rules):
  for name, rule in rules.items():
    sources = [_path(label) for label in rule["srcs"] if label.endswith(".py")]
    imported = {package for path in sources for package in _imported(path)}
    if rule["kind"].startswith("py_"):
      missing = imported.intersection(_PACKAGES) - _runfiles(rules, name)
      assert not missing, f"{name} imports {missing}"


def test_each_build_is_kept_by_hand():
  lengths = {build: len(build.read_text().splitlines()) for build in _BUILDS}
  assert max(lengths.values()) <= 60, lengths


def test_bazel_lists_the_same_rules(rules, tmp_path):
  bazel = shutil.which("bazel")
  if bazel is None:
    pytest.skip("bazel is not installed (Debian: apt-get install bazel-bootstrap)")
  workspace, output = tmp_path / "workspace", tmp_path / "output"
  workspace.mkdir()
  for entry in _ROOT.iterdir():
    if not entry.name.startswith("bazel-"):  # The links of a build that was run here.
      (workspace / entry.name).symlink_to(entry)
  done = subprocess.run(
    # --batch leaves no server behind.
    [
      *(bazel, "--batch", "--nohome_rc", f"--output_user_root={output}"),
      *("query", "//... + labels(srcs, //...)"),
    ],
    cwd=workspace,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  sources = {label for rule in rules.values() for label in rule["srcs"]}
  assert set(done.stdout.split()) == sources | set(rules)
