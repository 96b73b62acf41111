"""Writes BUILD, Bazel's list of targets, from the Python files and their imports.

  python .ci/build_file.py

One py_library for each file, with what it imports as deps; one py_binary for each
program of binaries/; one py_test for each tests/**/test_*.py.
"""

from __future__ import annotations

import ast
import contextlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TREES = ("tff_algos", "tasks", "binaries", "tests")
# Folders that imports start from: `pythonpath` of pytest's settings.
_IMPORT_ROOTS = ("", "tests/binaries", "tests/conformance")
_MAIN = "tests/bazel_main.py"
_CONFIG = "pyproject.toml"
_HEAD = """\
# Bazel's targets: one for each Python file. Written by a script; after adding a file or
# an import, refresh it with
#
#   python .ci/build_file.py
#
# Packages from PyPI are not Bazel's: it runs the `python3` that it finds, so put the
# project's environment first, as in
#
#   uv run bazel test //:tests/test_preflight
#   uv run bazel run //:binaries/train -- --list

package(default_visibility = ["//visibility:public"])
"""


class Target(NamedTuple):
  """One rule of BUILD."""

  rule: str
  attributes: Mapping[str, Any]

  def __str__(self):
    lines = [
      f"    {name} = {_value(value)},"
      for name, value in self.attributes.items()
      if value is not None and value != []
    ]
    return "\n".join([f"{self.rule}(", *lines, ")"]) + "\n"


def _value(value: Any) -> str:
  if not isinstance(value, list):
    return json.dumps(value) if isinstance(value, str) else str(value)
  if len(value) == 1:
    return f"[{json.dumps(value[0])}]"
  return "\n".join(["[", *(f"        {json.dumps(v)}," for v in value), "    ]"])


class _Source:
  """One Python file and what it says about others."""

  def __init__(self, root: pathlib.Path, path: str):
    self.root, self.path, self.name = root, path, path[: -len(".py")]
    self.tree = ast.parse((root / path).read_text(encoding="utf-8"), path)

  @property
  def is_test(self) -> bool:
    return self.path.startswith("tests/") and "/test_" in self.path

  @property
  def is_program(self) -> bool:
    """Whether it has `if __name__ == "__main__":`."""
    return any(
      isinstance(node, ast.If) and "'__main__'" in ast.dump(node.test)
      for node in self.tree.body
    )

  def imports(self) -> Iterator[tuple[str, str]]:
    """(module, name in it or "") of each import; name "*": all that is in it."""
    for tree in [self.tree, *self._programs_in_strings()]:
      yield from self._imports_of(tree)

  def _programs_in_strings(self) -> Iterator[ast.AST]:
    """What a test gives to `python -c`."""
    for word in self.words():
      if self.is_test and "import " in word:
        with contextlib.suppress(SyntaxError):
          yield ast.parse(word)

  def _imports_of(self, tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
      if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
      elif isinstance(node, ast.ImportFrom):
        if node.level:
          raise ValueError(f"{self.path}:{node.lineno}: a relative import")
        yield from ((node.module, alias.name) for alias in node.names)
      elif isinstance(node, ast.Call) and _calls(node, "import_module"):
        yield from self._dynamic_import(node.args[0])

  def _dynamic_import(self, name: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(name, ast.Constant):
      yield name.value, ""
    elif isinstance(name, ast.JoinedStr):  # f"package.{module}"
      package = getattr(name.values[0], "value", "")
      if isinstance(package, str) and package.endswith("."):
        yield package[:-1], "*"

  def words(self) -> set[str]:
    """All string constants."""
    nodes = ast.walk(self.tree)
    return {
      n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }

  def data(self) -> set[str]:
    """Files that it names by their path from the root or from its own folder."""
    found = set()
    for word in self.words():
      if not re.fullmatch(r"[\w.][\w./-]*", word) or ".." in word:
        continue
      for path in (word, f"{pathlib.PurePosixPath(self.path).parent}/{word}"):
        is_source = path.endswith(".py") and path.startswith(_TREES)
        if not is_source and (self.root / path).is_file():
          found.add(path)
    return found

  def programs(self) -> set[str]:
    """Names of the programs of binaries/ that it runs by their path."""
    words = self.words()
    names = [n for word in words for n in re.findall(r"\bbinaries/(\w+)\.py", word)]
    names += [word[: -len(".py")] for word in words if re.fullmatch(r"\w+\.py", word)]
    return {name for name in names if (self.root / f"binaries/{name}.py").is_file()}


def _calls(node: ast.Call, name: str) -> bool:
  function = node.func
  called = function.attr if isinstance(function, ast.Attribute) else None
  return name == (function.id if isinstance(function, ast.Name) else called)


class _Project:
  """All files, and who needs whom."""

  def __init__(self, root: pathlib.Path):
    paths = sorted(
      path.relative_to(root).as_posix()
      for tree in _TREES
      for path in (root / tree).rglob("*.py")
    )
    self.sources = {path: _Source(root, path) for path in paths if path != _MAIN}
    self.modules = {}
    for folder in reversed(_IMPORT_ROOTS):
      prefix = f"{folder}/" if folder else ""
      for source in self.sources.values():
        if source.name.startswith(prefix):
          name = source.name[len(prefix) :].replace("/", ".")
          self.modules[re.sub(r"\.__init__$", "", name)] = source

  def deps(self, source: _Source) -> list[str]:
    """Names of the targets that a file needs."""
    found = {name for needed in source.imports() for name in self._of(*needed)}
    facades = {package for package, _ in self.facades()}
    if source.is_test and "README.md" in source.words():
      found |= facades  # It runs the README's examples.
    parts = source.path.split("/")
    for end in range(1, len(parts)):
      folder = "/".join(parts[:end])
      found.add(f"{folder}/__init__")
      if source.is_test:
        found.add(f"{folder}/conftest")
    names = {known.name for known in self.sources.values()}
    return sorted(found & (names | facades) - {source.name})

  def _of(self, module: str, name: str) -> Iterator[str]:
    if name == "*":
      inside = (n for n in self.modules if n.rpartition(".")[0] == module)
      yield from (self.modules[n].name for n in inside)
    elif f"{module}.{name}" in self.modules:
      yield self.modules[f"{module}.{name}"].name
    elif module in self.modules:
      yield self.modules[module].name
      yield module  # Where it is a facade: the name may come from any of its modules.

  def facades(self) -> Iterator[tuple[str, list[str]]]:
    """Each package that imports its modules when they are first used, and those."""
    for source in self.sources.values():
      if source.path.endswith("/__init__.py"):
        inside = sorted(
          self.modules[word].name for word in source.words() if word in self.modules
        )
        if inside:
          yield source.name[: -len("/__init__")], [source.name, *inside]

  def targets(self) -> Iterator[Target]:
    """The rules of BUILD, in its order."""
    for package, inside in self.facades():
      yield Target("py_library", {"name": package, "deps": _labels(inside)})
    for source in self.sources.values():
      yield self._test(source) if source.is_test else self._library_or_program(source)

  def _library_or_program(self, source: _Source) -> Target:
    in_tests = source.path.startswith("tests/")
    is_program = source.path.startswith("binaries/") and source.is_program
    return Target(
      "py_binary" if is_program else "py_library",
      {
        "name": source.name,
        "testonly": True if in_tests else None,
        "srcs": [source.path],
        "data": sorted(source.data()) or None,
        "imports": self._import_roots(source),
        # Else Bazel makes a package of binaries/ and of tests/.
        "legacy_create_init": 0 if is_program else None,
        "visibility": ["//visibility:private"] if in_tests else None,
        "deps": _labels(self.deps(source)),
      },
    )

  def _test(self, source: _Source) -> Target:
    programs = [f"binaries/{name}" for name in source.programs()]
    is_slow = programs or "/conformance/" in source.path
    return Target(
      "py_test",
      {
        "name": source.name,
        "size": "large" if is_slow else "medium",
        "srcs": [_MAIN, source.path],
        "args": [source.path],
        "data": sorted({_CONFIG} | source.data()) + sorted(_labels(programs)),
        "imports": self._import_roots(source),
        "legacy_create_init": 0,
        "main": _MAIN,
        "visibility": ["//visibility:private"],
        "deps": _labels(self.deps(source)),
      },
    )

  def _import_roots(self, source: _Source) -> list[str]:
    roots = [root for root in _IMPORT_ROOTS if root and source.path.startswith(root)]
    return [".", *roots]


def _labels(names: Iterable[str]) -> list[str]:
  return [f":{name}" for name in names]


def _check_acyclic(targets: Iterable[Target]) -> None:
  needs = {t.attributes["name"]: t.attributes["deps"] for t in targets}
  done: set[str] = set()

  def visit(name: str, path: tuple[str, ...]) -> None:
    if name in path:
      raise ValueError(f"imports go in a circle: {' -> '.join((*path, name))}")
    if name not in done:
      for label in needs[name]:
        visit(label[1:], (*path, name))
      done.add(name)

  for name in needs:
    visit(name, ())


def render(root: pathlib.Path = _ROOT) -> str:
  """The text of BUILD."""
  targets = list(_Project(root).targets())
  _check_acyclic(targets)
  return "\n".join([_HEAD, *map(str, targets)])


if __name__ == "__main__":
  (_ROOT / "BUILD").write_text(render(), encoding="utf-8")
