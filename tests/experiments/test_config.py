"""The settings of a run: what is given, over a run's own, over the task's."""

from __future__ import annotations

import pytest

from experiments import config
from tff_algos.errors import InputError


def test_hparams_go_to_all_that_have_them_or_to_the_one_that_is_named():
  words = ["epochs=3", "fedreg:gamma=0.5", "batch_size=inf", "momentum=0.9"]
  assert config.parse_hparams(words, ["fedavg", "fedreg"]) == {
    "fedavg": dict(epochs=3, batch_size=None, momentum=0.9),
    "fedreg": dict(gamma=0.5, epochs=3, batch_size=None),
  }
  assert config.parse_hparams([], ["fedreg"]) == {"fedreg": {}}


@pytest.mark.parametrize(
  "word", ["epochs", "epochs=x", "gama=1", "fedprox:epochs=2", "fedavg:gamma=1"]
)
def test_hparams_that_nobody_has_are_named(word):
  with pytest.raises(InputError, match=word):
    config.parse_hparams([word], ["fedavg", "fedreg"])
