"""What is raised where it is not the library that is at fault; free of TensorFlow.

Programs print the message of these alone. Any other exception is a defect of the code
that it comes from, and is shown with its traceback.
"""

from __future__ import annotations


class InputError(ValueError):
  """What the caller gave cannot be used; one sentence: what, where, and what to do."""


class DamagedError(InputError):
  """A file does not hold what was written to it."""


class InputWarning(UserWarning):
  """What the caller gave can be used, but hardly does what is meant; one sentence."""


class UnsupportedComputationError(NotImplementedError):
  """The computation uses something that the runtime does not run."""


class WorkerLostError(RuntimeError):
  """The worker, or every worker, did not start or died too often; not retried."""
