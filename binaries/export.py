"""Takes the model of a run of `train.py` out of its folder.

  python binaries/export.py --run=runs/mine --format=saved_model --out=served/digits/1

Formats: `keras`, one file for Keras; `saved_model`, a folder for TensorFlow and
TensorFlow Serving; `tflite`, one file for TensorFlow Lite; `tflite_training`, one with
which a device can train on. All take inputs as the run's data have them, such as uint8
pictures. What was written is read again and its predictions are compared with the run's.
Exit status: 2 if there is nothing to export, or the format cannot hold it, and then
nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments import command_line

flags.DEFINE_string("run", None, "The folder of a run that ended or was stopped.")
flags.DEFINE_enum(
  "format",
  "saved_model",
  ["keras", "saved_model", "tflite", "tflite_training"],
  "What is written: docs/serving.md says what each takes and gives.",
)
flags.DEFINE_string(
  "out", None, "The file (.keras, .tflite) or the folder (saved_model); a new one."
)
flags.DEFINE_boolean(
  "best",
  False,
  "The model of the best round by test accuracy, or loss where there is none.",
)
flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of the data set, for a run without model.keras; default: where it was.",
)
flags.DEFINE_string(
  "cache_dir", None, "Folder for prepared client data, for such a run; the same default."
)


def main() -> None:
  """Exports what the flags say."""
  from experiments.export import program

  given = flags.FLAGS
  program.run(
    program.Request(
      run=os.path.expanduser(given.run),
      format=given.format,
      out=os.path.expanduser(given.out),
      best=given.best,
      data_dir=given.data_dir,
      cache_dir=given.cache_dir,
    )
  )


if __name__ == "__main__":
  flags.mark_flags_as_required(["run", "out"])
  command_line.start(main, imports="experiments.export.program")
