"""The wheel is the library; a project elsewhere installs it as docs/install.md says."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from packaging.requirements import Requirement

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_INSTALL = (_ROOT / "docs/install.md").read_text(encoding="utf-8")
_PYTHON = (_ROOT / "docs/from_python.md").read_text(encoding="utf-8")


def _run(*command, cwd: pathlib.Path, seconds: int = 300, **environment) -> str:
  """Runs a command as somebody does who has nothing of this repository; its output."""
  of_ours = ("PYTHON", "VIRTUAL_ENV", "UV_PROJECT")
  kept = {k: v for k, v in os.environ.items() if not k.startswith(of_ours)}
  done = subprocess.run(
    [str(word) for word in command],
    cwd=cwd,
    # Links into uv's cache take no room; copies would take 2.4 GB.
    env={**kept, "UV_LINK_MODE": "hardlink", "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=seconds,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.fixture(scope="module")
def wheel(uv, pypi, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("wheel")
  _run(uv, "build", "--wheel", "--quiet", "--out-dir", folder, _ROOT, cwd=folder)
  [found] = folder.glob("*.whl")
  return found


@pytest.fixture
def elsewhere(wheel, tmp_path) -> pathlib.Path:
  """A folder with the two files that the page's lines name, where they name them."""
  (tmp_path / "dist").mkdir()
  shutil.copy(wheel, tmp_path / "dist")
  shutil.copy(_ROOT / "constraints.txt", tmp_path)
  return tmp_path


def _line(start: str) -> list[str]:
  """The words of the one line in a block of the page that installs the wheel."""
  lines = re.findall(rf"^{start} .*\.whl$", _INSTALL, re.MULTILINE)
  assert len(lines) == 1, lines
  return lines[0].split()


def _python_blocks() -> str:
  blocks = re.findall(r"^```python\n(.*?)^```$", _PYTHON, re.MULTILINE | re.DOTALL)
  assert blocks
  return "\n".join(blocks)


def _give_bytecode(environment: pathlib.Path) -> None:
  """Gives it what this environment has; Python would take ten seconds to make it anew.

  It is used only where it was made of the same source.
  """
  ours = pathlib.Path(sysconfig.get_path("purelib"))
  theirs = environment / ours.relative_to(sys.prefix)
  for folder in ours.rglob("__pycache__"):
    target = theirs / folder.relative_to(ours)
    if target.parent.is_dir() and not target.exists():
      shutil.copytree(folder, target)


def _assert_is_usable(python: pathlib.Path, folder: pathlib.Path) -> None:
  """It is the wheel that is imported, without tasks, and docs/from_python.md runs."""
  look = (
    "import importlib.util as i\n"
    "print([n for n in ('tasks', 'experiments', 'binaries') if i.find_spec(n)])\n"
    "print(i.find_spec('tff_algos').origin)"
  )
  others, origin = _run(python, "-c", look, cwd=folder).splitlines()
  assert others == "[]"
  assert pathlib.Path(origin).is_relative_to(folder)
  assert "fedgg" in _run(python, "-m", "tff_algos", cwd=folder)
  numbers = _run(python, "-c", _python_blocks(), cwd=folder).split()
  # The labels are a linear function of the inputs: guessing costs ln 2 = 0.69.
  assert len(numbers) == 5
  assert float(numbers[0]) < 0.4


# --- What it holds --------------------------------------------------------------------


def test_wheel_holds_the_library_and_nothing_else(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  library = {name for name in names if name.startswith("tff_algos/")}
  sources = (_ROOT / "tff_algos").rglob("*.py*")
  of_python = {
    path.relative_to(_ROOT).as_posix() for path in sources if path.suffix != ".pyc"
  }
  assert library == of_python | {"tff_algos/py.typed"}
  assert all(".dist-info/" in name for name in names - library)


def _imported_packages() -> set[str]:
  """The packages of this environment that tff_algos imports modules of."""
  modules = set()
  for path in (_ROOT / "tff_algos").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.Import):
        modules |= {alias.name.split(".")[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        modules.add(node.module.split(".")[0])
  return {
    distribution.metadata["Name"].replace("_", "-")
    for distribution in importlib.metadata.distributions()
    if modules & {re.split(r"[/.]", str(path))[0] for path in distribution.files or ()}
  }


def test_wheel_asks_for_what_the_library_imports(wheel):
  with zipfile.ZipFile(wheel) as archive:
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
  asked = map(Requirement, metadata.get_all("Requires-Dist"))
  needed = {r.name for r in asked if r.marker is None or "extra" not in str(r.marker)}
  # What the extra cluster asks for, or that does.
  optional = {"dask", "distributed"}
  # These two are asked for only to hold them back.
  assert needed - {"h5py", "setuptools"} == _imported_packages() - optional


def test_checkout_is_importable_after_an_editable_installation(uv, pypi, tmp_path):
  """As after `uv sync`, and after pip's `-e .` in requirements.txt."""
  checkout, venv_dir = tmp_path / "checkout", tmp_path / "venv"
  trees = [path.parent for path in _ROOT.glob("*/*.py")]
  trees = [tree for tree in trees if tree.name not in ("docs", "tests")]
  trees = sorted({tree for tree in trees if not tree.name.startswith(".")})
  for tree in trees:
    shutil.copytree(
      tree, checkout / tree.name, ignore=shutil.ignore_patterns("__pycache__")
    )
  for name in ("pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(_ROOT / name, checkout)
  _run(uv, "venv", "--quiet", "--python", sys.executable, venv_dir, cwd=tmp_path)
  python = venv_dir / "bin/python"
  install = ("pip", "install", "--quiet", "--no-deps", "--python", python)
  _run(uv, *install, "--editable", checkout, cwd=tmp_path)
  look = "import importlib.util as i, sys; [i.find_spec(n).origin for n in sys.argv[1:]]"
  assert {"binaries", "tasks", "tff_algos"} <= {tree.name for tree in trees}
  _run(python, "-c", look, *[tree.name for tree in trees], cwd=tmp_path)


# --- A third party's project ------------------------------------------------------------


@pytest.mark.packaging
def test_project_of_uv_adds_the_wheel_as_the_page_says(uv, elsewhere):
  [settings] = re.findall(r"^```toml\n(.*?)^```$", _INSTALL, re.MULTILINE | re.DOTALL)
  new = ("init", "--quiet", "--bare", "--no-workspace", "--python", sys.executable)
  _run(uv, *new, "--name", "third-party", cwd=elsewhere)
  with open(elsewhere / "pyproject.toml", "a", encoding="utf-8") as f:
    f.write(f"\n{settings}")
  _run(*_line("uv add"), cwd=elsewhere, seconds=600)
  _give_bytecode(elsewhere / ".venv")
  _assert_is_usable(elsewhere / ".venv/bin/python", elsewhere)


@pytest.mark.packaging
def test_pip_installs_the_wheel_as_the_page_says(elsewhere):
  """Slow: pip downloads half a gigabyte and writes 2.4 GB, where uv links its cache."""
  environment = elsewhere / "venv"
  venv.create(environment, with_pip=True)
  path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
  try:
    _run(*_line("pip install"), cwd=elsewhere, seconds=1800, PATH=path)
    _assert_is_usable(environment / "bin/python", elsewhere)
  finally:
    shutil.rmtree(environment)  # pytest would keep it.
