"""Imports archives that you already have into TFDS's download cache.

  python binaries/import_data.py --dataset=mnist --from=DIR [--data_dir=DIR]

The files are recognised by their published SHA-256, whatever their names. Exit status:
0 if the data set is ready or, with --noprepare, in the cache; 2 if not (one sentence for
each problem on standard error).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments import command_line

_DATASET = flags.DEFINE_string(
  "dataset", None, "TFDS's name of the data set, such as mnist or emnist/letters."
)
_FROM = flags.DEFINE_string("from", None, "Folder that holds the archives.")
_DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "TFDS's folder. Default: $TFDS_DATA_DIR or ~/tensorflow_datasets.",
)
_PREPARE = flags.DEFINE_boolean(
  "prepare", True, "Also prepare the data set, so that the first run need not."
)


def main() -> None:
  """Imports what the flags say."""
  from experiments import importing

  importing.run(_DATASET.value, _FROM.value, _DATA_DIR.value, prepare=_PREPARE.value)


if __name__ == "__main__":
  flags.mark_flags_as_required(["dataset", "from"])
  command_line.start(main)
