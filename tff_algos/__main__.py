"""Says which algorithms there are, and which versions of what they run on.

  python -m tff_algos

Starts at once: the versions are those of the installed packages, which are not imported.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

from tff_algos import preflight

_PACKAGES = {
  "tff_algos": "tff-algos",
  "TensorFlow": "tensorflow",
  "TensorFlow Federated": "tensorflow-federated",
  "NumPy": "numpy",
}


def _version(package: str) -> str:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "(not installed)"


def main() -> None:
  """Prints both lists; the command line takes nothing but `--help`."""
  summary = "Lists the algorithms of tff_algos and the versions of what they run on."
  argparse.ArgumentParser(prog="python -m tff_algos", description=summary).parse_args()
  preflight.defer_tensorflow()
  from tff_algos.algorithms import registry  # Which imports TensorFlow, put off.

  rows = registry.ALGORITHMS.values()
  name_width = max(len(row.name) for row in rows)
  builder_width = max(len(row.builder.__name__) for row in rows)
  print("algorithms, their builders in tff_algos, and their sources:")
  for row in rows:
    builder = row.builder.__name__
    print(f"  {row.name:<{name_width}} {builder:<{builder_width}} {row.source}")
    print(f"  {'':<{name_width}} {row.description}")
  print("versions:")
  for title, package in _PACKAGES.items():
    print(f"  {title} {_version(package)}")
  print(f"  Python {platform.python_version()}")


if __name__ == "__main__":
  main()
