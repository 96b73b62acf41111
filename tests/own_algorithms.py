"""A user's own algorithms: all but the first two have something wrong with them."""

from __future__ import annotations

import dataclasses
from typing import Optional

import tff_algos


@dataclasses.dataclass(frozen=True)
class GoodHparams(tff_algos.WeightedLocalSgd):
  """FedAvg's, with a choice and a number of one's own."""

  is_doubled: bool = tff_algos.hparam(False, "Whether all move twice.", source="own")
  clip: Optional[float] = tff_algos.hparam(
    1.0, "Not looked at.", source="own", low=0, optional=True
  )


def build_good(model, hparams=GoodHparams()):
  """FedAvg, which may move twice as far."""
  fed_avg = tff_algos.FedAvgHparams(
    epochs=hparams.epochs,
    batch_size=hparams.batch_size,
    learning_rate=hparams.learning_rate,
    server_learning_rate=2.0 if hparams.is_doubled else 1.0,
  )
  return tff_algos.build_fed_avg(model, fed_avg)


good = tff_algos.Algorithm("good", build_good, GoodHparams, "FedAvg.", "nowhere")
two = (good, good._replace(name="again"))
none = ()
not_an_algorithm = 7
no_word = good._replace(name="fed avg")


def build_without_default(model, hparams):
  """Has no class to find."""


def build_other_default(model, hparams=GoodHparams(epochs=3)):
  """The flags would not know of its epochs."""


@dataclasses.dataclass(frozen=True)
class TlsHparams(tff_algos.PlainSgd):
  """Its flag would be --tls_key."""

  key: float = tff_algos.hparam(1.0, "A number.", source="own")


same_flag = good._replace(name="tls", hparams_class=TlsHparams)


@dataclasses.dataclass(frozen=True)
class PlainFieldHparams(tff_algos.PlainSgd):
  """Its base would check a field of which it knows nothing."""

  mu: float = 0.1


plain_field = good._replace(hparams_class=PlainFieldHparams)


def build_nothing(model, hparams=GoodHparams()):
  """Forgets to return the process."""
