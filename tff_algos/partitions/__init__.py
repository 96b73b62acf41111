"""Splits of a labelled training set over clients; NumPy only.

  split = partitions.partition("dirichlet:beta=0.1", y, num_clients=20, seed=0)
  clients = tff_algos.write_clients(
    "my_clients", partitions.client_examples(split, x, y), spec
  )

Every split is a pure function of (labels, parameters, seed) and returns a
`Partition`: example indices, no data. It gives every example to at most one client
and says which it gave to nobody; only `twafl` lets clients overlap, because its paper
does. Within a client the examples lie in random order, so that a loader which does
not shuffle again still meets mixed mini-batches.

Sources, as the marks in the docstrings name them: *paper* is printed there, *code* is
what a public implementation does, *recalled* is known from the literature, *derived*
follows from those, *convention* is chosen here because they are silent.

    McMahan et al., Communication-Efficient Learning of Deep Networks from
      Decentralized Data, 2017                                     `iid`, `shards`
    FedGG, section 4.1                                             `dirichlet`
    Li et al., Federated Learning on Non-IID Data Silos (NIID-Bench), 2022
                                                                `dirichlet_by_class`
    FedAgg, section VII-A3                            `shards`, `dirichlet_equal`
    McMahan et al. (roles of plays), FedReg (sources, users)       `natural`
    FedReg, section 4.1 and appendix B.2                           `power_law`
    Chen, Sun, Jin, Communication-Efficient Federated Deep Learning with Layerwise
      Asynchronous Model Update and Temporally Weighted Aggregation, Algorithm 4
                                                                   `twafl`
"""

from __future__ import annotations

from tff_algos.partitions.assignment import Partition, class_counts, client_examples
from tff_algos.partitions.dealing import iid, natural, shards
from tff_algos.partitions.dirichlet_draws import (
  dirichlet,
  dirichlet_by_class,
  dirichlet_equal,
)
from tff_algos.partitions.few_classes import power_law, twafl
from tff_algos.partitions.table import NAMES, SPLITS, Split, parse, partition

__all__ = [
  "NAMES",
  "SPLITS",
  "Partition",
  "Split",
  "class_counts",
  "client_examples",
  "dirichlet",
  "dirichlet_by_class",
  "dirichlet_equal",
  "iid",
  "natural",
  "parse",
  "partition",
  "power_law",
  "shards",
  "twafl",
]
