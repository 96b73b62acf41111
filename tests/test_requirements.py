"""requirements.txt and constraints.txt are what uv.lock says and the project asks for.

The first installs the checkout with its tasks and programs, the second has what
tff_algos alone needs.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

try:
  import tomllib
except ImportError:  # Before Python 3.11; pytest brings it then.
  import tomli as tomllib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXPORT = "uv export --locked --no-hashes --no-annotate"
_EXPORTS = {
  "requirements.txt": f"{_EXPORT} --no-dev -o requirements.txt",
  "constraints.txt": (
    f"{_EXPORT} --no-default-groups --no-emit-project -o constraints.txt"
  ),
}
_INSTALL = (_ROOT / "docs/install.md").read_text(encoding="utf-8")
_PYTHONS = ("3.9", "3.10", "3.11")
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _lines(text: str) -> list[str]:
  lines = (line.strip() for line in text.splitlines())
  return [line for line in lines if line and not line.startswith("#")]


def _requirements(text: str, python: str) -> list[Requirement]:
  environment = {
    "extra": "",
    "python_version": python,
    "python_full_version": f"{python}.5",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
  }
  found = [Requirement(line) for line in _lines(text) if not line.startswith("-")]
  return [r for r in found if r.marker is None or r.marker.evaluate(environment)]


def _pins(file: str, python: str) -> dict[str, Version]:
  """The version of each package that a file installs under one Python."""
  text = (_ROOT / file).read_text(encoding="utf-8")
  pins = {}
  for requirement in _requirements(text, python):
    name = _normal(requirement.name)
    assert name not in pins, f"two versions of {name} for Python {python}"
    [specifier] = requirement.specifier
    assert specifier.operator == "==", f"{name} is not pinned"
    pins[name] = Version(specifier.version)
  return pins


def _normal(name: str) -> str:
  return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("file", _EXPORTS)
def test_file_is_the_export_of_the_lock(file, tmp_path):
  uv = shutil.which("uv")
  if uv is None:
    pytest.skip("uv is not installed")
  command = _EXPORTS[file].replace(file, str(tmp_path / "exported.txt"))
  done = subprocess.run(
    [uv, *command.split()[1:], "--offline", "--no-cache", "--quiet"],
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  exported = _lines((tmp_path / "exported.txt").read_text(encoding="utf-8"))
  kept = _lines((_ROOT / file).read_text(encoding="utf-8"))
  assert kept == exported, f"refresh it with `{_EXPORTS[file]}`"


def test_requirements_install_the_project_itself():
  # Hashes would make pip refuse this line, and with it `import tff_algos`.
  lines = _lines((_ROOT / "requirements.txt").read_text(encoding="utf-8"))
  assert "-e ." in lines
  assert not [line for line in lines if "--hash" in line]


def test_constraints_hold_no_project():
  """Only such a file may be given to `uv add --constraints`."""
  lines = _lines((_ROOT / "constraints.txt").read_text(encoding="utf-8"))
  assert not [line for line in lines if line.startswith("-")]


@pytest.mark.parametrize("python", _PYTHONS)
@pytest.mark.parametrize("file", _EXPORTS)
def test_pins_keep_what_the_project_asks_for(file, python):
  pins = _pins(file, python)
  lines = list(_PROJECT["project"]["dependencies"])
  if file == "requirements.txt":
    lines += _PROJECT["dependency-groups"]["experiments"]
  wanted = _requirements("\n".join(lines), python)
  wanted += map(Requirement, _PROJECT["tool"]["uv"]["override-dependencies"])
  for requirement in wanted:
    name = _normal(requirement.name)
    assert name in pins, f"{name} is not in {file} for Python {python}"
    assert pins[name] in requirement.specifier, f"{name} {pins[name]} for {requirement}"


@pytest.mark.parametrize("python", _PYTHONS)
def test_both_files_pin_the_same_versions(python):
  assert (
    _pins("constraints.txt", python).items() < _pins("requirements.txt", python).items()
  )


@pytest.mark.parametrize("file", _EXPORTS)
def test_no_tool_of_development_is_installed(file):
  optional = _PROJECT["project"]["optional-dependencies"]["dev"]
  tools = {_normal(Requirement(line).name) for line in optional}
  for python in _PYTHONS:
    assert not tools & set(_pins(file, python))


def test_experiments_are_not_what_the_library_asks_for():
  asked = {Requirement(line).name for line in _PROJECT["project"]["dependencies"]}
  group = {
    Requirement(line).name for line in _PROJECT["dependency-groups"]["experiments"]
  }
  assert not asked & group


def test_overrides_of_the_page_are_those_of_the_project():
  [block] = re.findall(r"^```toml\n(.*?)^```$", _INSTALL, re.MULTILINE | re.DOTALL)
  uv = _PROJECT["tool"]["uv"]
  assert tomllib.loads(block)["tool"]["uv"] == {
    "override-dependencies": uv["override-dependencies"]
  }


def test_citation_is_of_this_version():
  text = (_ROOT / "CITATION.cff").read_text(encoding="utf-8")
  said = dict(re.findall(r"^([\w-]+): (.+)$", text, re.MULTILINE))
  project = _PROJECT["project"]
  assert said["title"] == "tff_algos"
  for key, kept in (
    ("version", "version"),
    ("license", "license"),
    ("abstract", "description"),
  ):
    assert said[key] == project[kept]
  authors = re.findall(r"^  - name: (.+)$", text, re.MULTILINE)
  assert authors == [author["name"] for author in project["authors"]]
  assert f"tff_algos-{project['version']}-" in _INSTALL


def test_all_pythons_of_the_project_are_tried():
  allowed = SpecifierSet(_PROJECT["project"]["requires-python"])
  assert [f"3.{n}" for n in range(30) if f"3.{n}.5" in allowed] == list(_PYTHONS)
