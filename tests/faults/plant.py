"""Plants each deliberate fault of `faults.py` in a copy and runs what should catch it.

  uv run python tests/faults/plant.py [--only=TEXT,TEXT] [--list]

First the tests of all chosen faults are run without any, and must pass. Then, for each
fault, they must fail: a fault that stays unseen is a hole in the suite. Each takes some
twenty seconds, so it is run by name, after tests were made fewer or cheaper. Exit status:
0 if every fault was caught, 1 if not, 2 if a fault no longer fits the code.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from faults import FAULTS, Fault

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS = 900
_CAUGHT = 1  # pytest's status where tests have failed.


def _copy(folder: pathlib.Path) -> None:
  """Copies the tracked and the new files, but for results."""
  command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
  listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
  for name in listed.stdout.splitlines():
    source = _ROOT / name
    if source.is_file() and not name.startswith("results/"):
      target = folder / name
      target.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(source, target)


def _test(folder: pathlib.Path, tests: Sequence[str]) -> int:
  """pytest's exit status; the copy's files come before the installed ones."""
  command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q"]
  with open(folder / "pytest.log", "w") as log:
    done = subprocess.run(
      [*command, "-p", "no:cacheprovider", *tests],
      cwd=folder,
      env={**os.environ, "PYTHONPATH": str(folder)},
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      timeout=_SECONDS,
      check=False,
    )
  return done.returncode


def _problem(fault: Fault) -> str:
  """Why a fault does not fit the code any more; "" if it does."""
  path = _ROOT / fault.path
  if not path.is_file():
    return f"there is no {fault.path}"
  count = path.read_text(encoding="utf-8").count(fault.right)
  return "" if count == 1 else f"its text is {count} times in {fault.path}"


def _plant(folder: pathlib.Path, fault: Fault) -> bool:
  """Whether the tests catch it; the copy is whole again afterwards."""
  path = folder / fault.path
  right = path.read_text(encoding="utf-8")
  path.write_text(right.replace(fault.right, fault.wrong), encoding="utf-8")
  try:
    return _test(folder, fault.tests) == _CAUGHT
  finally:
    path.write_text(right, encoding="utf-8")


def _without_faults(chosen: Sequence[Fault]) -> Iterator[tuple[str, ...]]:
  """pytest's arguments for all tests of some faults, a file at a time."""
  words: dict[str, set[str]] = {}
  for fault in chosen:
    file, *rest = fault.tests
    words.setdefault(file, set()).add(rest[1] if rest else "")
  for file, expressions in words.items():
    every = " or ".join(f"({words})" for words in sorted(expressions))
    yield (file,) if "" in expressions else (file, "-k", every)


def main() -> int:
  """Plants what the command line says; the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", default="", help="Texts of which a name must hold one.")
  parser.add_argument("--list", action="store_true", help="List the faults, and end.")
  given = parser.parse_args()
  texts = given.only.split(",")
  chosen = [f for f in FAULTS if any(text in f.name for text in texts)]
  problems = [f"{f.name}: {_problem(f)}" for f in chosen if _problem(f)]
  if given.list:
    print("\n".join(f"{f.name:<40} {f.path}" for f in chosen))
  if problems:
    print("\n".join(problems), file=sys.stderr)
    return 2
  if given.list:
    return 0
  with tempfile.TemporaryDirectory(prefix="tff_algos_faults_") as temporary:
    folder = pathlib.Path(temporary)
    _copy(folder)
    for tests in _without_faults(chosen):
      if _test(folder, tests):
        print((folder / "pytest.log").read_text()[-4000:])
        print(f"{tests[0]} fails without any fault.", file=sys.stderr)
        return 1
    unseen = []
    for k, fault in enumerate(chosen, start=1):
      start = time.monotonic()
      is_caught = _plant(folder, fault)
      unseen += [] if is_caught else [fault.name]
      word = "caught" if is_caught else "NOT CAUGHT"
      seconds = time.monotonic() - start
      print(f"{k}/{len(chosen)} {fault.name}: {word} ({seconds:.0f} s)", flush=True)
  print(f"{len(chosen) - len(unseen)} of {len(chosen)} faults were caught")
  if unseen:
    print(f"not caught: {', '.join(unseen)}", file=sys.stderr)
  return 1 if unseen else 0


if __name__ == "__main__":
  sys.exit(main())
