"""Deliberate faults: what is wrong in public implementations, and what once was in ours.

Each is one replacement of text that stands once in a file.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
  """One fault.

  Attributes:
    name: A few words.
    path: The file.
    right: What stands there once.
    wrong: What is planted in its place.
    tests: pytest's arguments for what should catch it.
  """

  name: str
  path: str
  right: str
  wrong: str
  tests: tuple[str, ...]


_ALGORITHMS = "tff_algos/algorithms/"
_CLIENT_WORK = "tff_algos/client_work/"
_SIMULATION = "tff_algos/simulation/"


def _replay(algorithm: str) -> tuple[str, ...]:
  return ("tests/conformance/test_replayed_rounds.py", "-k", f"{algorithm}- and mlp")


def _of(file: str, words: str) -> tuple[str, ...]:
  return (f"tests/{file}", "-k", words)


FAULTS = (
  # Algorithms.
  Fault(
    "fedprox: sign of the proximal term",
    f"{_ALGORITHMS}fed_prox.py",
    "strength=h.mu)",
    "strength=-h.mu)",
    _replay("fedprox"),
  ),
  Fault(
    "fedprox: half of mu",
    f"{_ALGORITHMS}fed_prox.py",
    "tuple(h.mu * x for x in start)",
    "tuple(0.5 * h.mu * x for x in start)",
    _replay("fedprox"),
  ),
  Fault(
    "fedprox: the given aggregator ignored",
    f"{_ALGORITHMS}fed_prox.py",
    "model_aggregator or rounds.mean()",
    "rounds.mean()",
    _of("conformance/test_built_anew.py", "takes_the_given"),
  ),
  Fault(
    "twafl, tefl, afl: the given sum ignored",
    f"{_ALGORITHMS}twafl.py",
    "total_weight=total, sum_factory=sum_factory, **changed",
    "total_weight=total, **changed",
    _of("conformance/test_built_anew.py", "takes_the_given"),
  ),
  Fault(
    "what an aggregator sends counts its part twice",
    "tff_algos/templates/ledger.py",
    "self._up[_AGGREGATION] += sent - own",
    "self._up[_AGGREGATION] += sent",
    _of("conformance/test_traffic.py", "every_kind and fedavg"),
  ),
  Fault(
    "fedavg: server rate ignored",
    f"{_ALGORITHMS}fed_avg.py",
    "variables.model, h.server_learning_rate, aggregate",
    "variables.model, 1.0, aggregate",
    _replay("fedavg"),
  ),
  Fault(
    "fedavg: the last short batch is dropped",
    f"{_CLIENT_WORK}local_training.py",
    "-(-n // hparams.batch_size)",
    "tf.maximum(n // hparams.batch_size, 1)",
    _replay("fedavg"),
  ),
  Fault(
    "scaffold: sign of the correction",
    f"{_ALGORITHMS}scaffold.py",
    "pull=local_training.Pull(target)",
    "pull=local_training.Pull(tree_math.subtract(server_variate, own_variate))",
    _replay("scaffold"),
  ),
  Fault(
    "scaffold: the control variate is not written back",
    f"{_ALGORITHMS}scaffold.py",
    "start, result, examples, renewed)",
    "start, result, examples, own_variate)",
    _replay("scaffold"),
  ),
  Fault(
    "scaffold: c moves by the whole mean",
    f"{_ALGORITHMS}scaffold.py",
    "num_sampled / num_clients",
    "1.0",
    _of("conformance/test_conservation.py", "scaffold"),
  ),
  Fault(
    "scaffold: momentum is not counted in K",
    f"{_ALGORITHMS}scaffold.py",
    "local_training.effective_steps(result.num_steps, h.momentum)",
    "result.num_steps",
    _replay("scaffold"),
  ),
  Fault(
    "fedgg: sign of the guidance",
    f"{_ALGORITHMS}fed_gg.py",
    "guided, -along_direction, direction.update",
    "guided, along_direction, direction.update",
    _replay("fedgg"),
  ),
  Fault(
    "fedgg: cosine without the drift's part",
    f"{_ALGORITHMS}fed_gg.py",
    "tf.math.divide_no_nan(strength * cosine, u)",
    "0.0 * tf.math.divide_no_nan(strength * cosine, u)",
    _replay("fedgg"),
  ),
  Fault(
    "fedgg: the first step of PyTorch goes on",
    f"{_ALGORITHMS}fed_gg.py",
    "is_cut = (u if is_normalized else d * u) < _EPSILON",
    "is_cut = d > 0",
    _replay("fedgg"),
  ),
  Fault(
    "fedgg: a newcomer takes a direction",
    f"{_ALGORITHMS}fed_gg.py",
    "tf.where(client_state.is_known, p, x)",
    "tf.where(True, p, x)",
    _replay("fedgg"),
  ),
  Fault(
    "fedadam: bias correction",
    f"{_ALGORITHMS}fed_opt.py",
    "(tf.sqrt(v) + h.tau)",
    "(tf.sqrt(v / (1 - 0.99)) + h.tau)",
    _replay("fedadam"),
  ),
  Fault(
    "fedyogi: sign",
    f"{_ALGORITHMS}fed_opt.py",
    "* tf.sign(v - squared)",
    "* tf.sign(squared - v)",
    _replay("fedyogi"),
  ),
  Fault(
    "fedadagrad: v starts at 0",
    f"{_ALGORITHMS}fed_opt.py",
    "hparams.tau**2)",
    "0.0 * hparams.tau)",
    _replay("fedadagrad"),
  ),
  Fault(
    "feddyn: strength not by the examples",
    f"{_ALGORITHMS}fed_dyn.py",
    "strength = h.alpha / share",
    "strength = h.alpha + 0.0 * share",
    _replay("feddyn"),
  ),
  Fault(
    "feddyn: the dual does not move",
    f"{_ALGORITHMS}fed_dyn.py",
    "tree_math.add(dual, tree_math.subtract(result.weights, start))",
    "tree_math.add(dual, tree_math.subtract(start, start))",
    _of("conformance/test_conservation.py", "feddyn"),
  ),
  Fault(
    "feddyn: without the dual the server stays where it is",
    f"{_ALGORITHMS}fed_dyn.py",
    "return rounds.ServerVariables(mean_model, ())",
    "return rounds.ServerVariables(variables.model, ())",
    _replay("feddyn"),
  ),
  Fault(
    "fading loss: it does not fade",
    "tff_algos/models/functional.py",
    "over < 0, loss",
    "over < np.inf, loss",
    _of("models/test_functional.py", "fading"),
  ),
  Fault(
    "fedcurv: a client's own share stays in",
    f"{_ALGORITHMS}fed_curv.py",
    "tf.where(took_part, 1.0, 0.0)",
    "tf.where(took_part, 0.0, 0.0)",
    _replay("fedcurv"),
  ),
  Fault(
    "fedcurv: factor 2 of the penalty's gradient",
    f"{_ALGORITHMS}fed_curv.py",
    "2 * h.curvature",
    "h.curvature",
    _replay("fedcurv"),
  ),
  Fault(
    "fedsgd: all clients count the same",
    f"{_ALGORITHMS}fed_sgd.py",
    "OrderedDict(model=client_weight(h.client_weighting, examples))",
    'OrderedDict(model=client_weight("uniform", examples))',
    _replay("fedsgd"),
  ),
  Fault(
    "fedreg: the range is not kept",
    f"{_ALGORITHMS}fed_reg.py",
    'if h.clip_range == "batch":',
    'if h.clip_range == "never":',
    _replay("fedreg"),
  ),
  Fault(
    "fedreg: w_s may be negative",
    f"{_ALGORITHMS}fed_reg.py",
    "w_s = tf.maximum(along, 0.0)",
    "w_s = along",
    _of("conformance/test_reductions.py", "fedreg_never_goes"),
  ),
  Fault(
    "fedreg: pseudo data go down the loss",
    f"{_CLIENT_WORK}pseudo_data.py",
    "v = v + length *",
    "v = v - length *",
    _replay("fedreg"),
  ),
  Fault(
    "fedreg_mg: nothing is hidden",
    f"{_ALGORITHMS}fed_reg.py",
    "gradient = remove_component(gradient, hidden)",
    "remove_component(gradient, hidden)",
    _replay("fedreg_mg"),
  ),
  Fault(
    "pfedgp: all classes have the same prior mean",
    f"{_CLIENT_WORK}gaussian_process.py",
    "centred = tf.math.log(alpha) - (0.5 * noise + log_shares)",
    "centred = tf.math.log(alpha) - 0.5 * noise",
    _replay("pfedgp"),
  ),
  Fault(
    "pfedgp: features keep their lengths",
    f"{_CLIENT_WORK}gaussian_process.py",
    "u, v = (tf.math.l2_normalize(x, axis=-1) for x in (a, b))",
    "u, v = a, b",
    _replay("pfedgp"),
  ),
  Fault(
    "pfedgp: a client is measured on what it knows",
    f"{_SIMULATION}client_evaluation.py",
    "return _totals(personal_model(weights, known), weights, others)",
    "return _totals(personal_model(weights, known), weights, known)",
    _of("simulation/test_client_evaluation.py", "personal_model"),
  ),
  Fault(
    "fedagg: later epochs are not counted",
    f"{_ALGORITHMS}fed_agg.py",
    "count - max(k, m) for m",
    "1 for m",
    _replay("fedagg"),
  ),
  Fault(
    "fedagg: rates without an upper end",
    f"{_ALGORITHMS}fed_agg.py",
    "tf.clip_by_value(rates, 0.0, h.max_learning_rate)",
    "tf.maximum(rates, 0.0)",
    _replay("fedagg"),
  ),
  Fault(
    "tefl: old uploads count more",
    "tff_algos/aggregators/temporal_weighting.py",
    "added * self._base**-age",
    "added * self._base**age",
    _replay("tefl"),
  ),
  Fault(
    "twafl: layers that stay do not age",
    "tff_algos/aggregators/temporal_weighting.py",
    'lambda v: v / self._base, state["sums"]',
    'lambda v: v, state["sums"]',
    _of("conformance/test_conservation.py", "twafl"),
  ),
  Fault(
    "twafl: all layers in the first rounds of a loop",
    f"{_ALGORITHMS}twafl.py",
    "[_SHALLOW] * num_shallow + [_FULL] * hparams.freq",
    "[_FULL] * hparams.freq + [_SHALLOW] * num_shallow",
    _replay("twafl"),
  ),
  # Client work.
  Fault(
    "local training: one order for all epochs",
    f"{_CLIENT_WORK}local_training.py",
    "epoch, place = step // batches, step % batches",
    "epoch, place = 0 * step, step % batches",
    _replay("fedavg"),
  ),
  Fault(
    "local training: momentum 1 - b",
    f"{_CLIENT_WORK}local_training.py",
    "velocity = tree_math.add_scaled(gradient, momentum, velocity)",
    "velocity = tuple(momentum * v + (1 - momentum) * g for v, g in "
    "zip(velocity, gradient))",
    _replay("fedavg"),
  ),
  Fault(
    "local training: all steps draw alike",
    f"{_CLIENT_WORK}local_training.py",
    "stateless_fold_in(step_seed, step)",
    "stateless_fold_in(step_seed, 0)",
    _of("conformance/test_local_training.py", "seed_of_its_own"),
  ),
  Fault(
    "full gradient: chunks count alike",
    f"{_CLIENT_WORK}gradients.py",
    "tf.cast(tf.shape(y)[0], tf.float32) / tf.cast(n, tf.float32)",
    "1.0 / tf.math.ceil(tf.cast(n, tf.float32) / float(_CHUNK))",
    _of("conformance/test_local_training.py", "more_examples_than_fit"),
  ),
  # Privacy.
  Fault(
    "dp-sgd: noise without the clip norm",
    "tff_algos/privacy/dp_sgd_step.py",
    "deviation = h.noise_multiplier * h.clip_norm\n",
    "deviation = h.noise_multiplier\n",
    _replay("fedavg_dpsgd"),
  ),
  Fault(
    "accounting: one release",
    "tff_algos/privacy/accounting.py",
    "accountant.compose(mechanism, int(num_releases))",
    "accountant.compose(mechanism, 1)",
    ("tests/privacy/test_accounting.py",),
  ),
  # Models and data.
  Fault(
    "pictures: not scaled",
    "tff_algos/models/functional.py",
    "scale = 1 / 255 if",
    "scale = 1.0 if",
    ("tests/models/test_functional.py",),
  ),
  Fault(
    "sequences: steps without a label count",
    "tff_algos/models/functional.py",
    "tf.cast(labels >= 0, losses.dtype)",
    "tf.cast(labels >= -1, losses.dtype)",
    ("tests/models/test_functional.py",),
  ),
  Fault(
    "client files: a cut file is read",
    "tff_algos/client_data.py",
    "(written > 0) & tf.equal(written * (x_bytes + y_bytes), length)",
    "(n > 0)",
    ("tests/test_client_data.py",),
  ),
  # The composer.
  Fault(
    "composer: updates that are not finite count",
    "tff_algos/templates/client_results.py",
    "tf.reduce_all(tf.math.is_finite(tf.stack(lengths)))",
    "tf.reduce_any(tf.stack(lengths) > -1.0)",
    _of("conformance/test_non_finite_updates.py", "fedavg"),
  ),
  Fault(
    "composer: a dropped client's state changes",
    "tff_algos/templates/client_results.py",
    "lambda: (tf.nest.map_structure(tf.zeros_like, sent), old_client_state),",
    "lambda: (tf.nest.map_structure(tf.zeros_like, sent), client_state),",
    _of("conformance/test_non_finite_updates.py", "scaffold"),
  ),
  Fault(
    "data sets: every round draws the same",
    "tff_algos/templates/client_readings.py",
    "return fold_in(fold_in(key, seed), round_num)",
    "return fold_in(key, seed)",
    _of("conformance/test_over_datasets.py", "draws_otherwise"),
  ),
  Fault(
    "data sets: labels do not count for the key",
    "tff_algos/templates/client_readings.py",
    "tf.strings.join([tf.io.serialize_tensor(v) for v in examples])",
    "tf.io.serialize_tensor(examples[0])",
    _of("conformance/test_over_datasets.py", "draws_otherwise"),
  ),
  Fault(
    "data sets: a client without examples counts",
    "tff_algos/templates/exchange.py",
    "if read.has_examples is None:",
    "if True:",
    _of("conformance/test_over_datasets.py", "without_examples"),
  ),
  Fault(
    "deployment: a device keeps its old state",
    "tff_algos/templates/deployment.py",
    "return DeviceWork((tuple(aggregated), *secure), state)",
    "return DeviceWork((tuple(aggregated), *secure), brought.state)",
    _of("conformance/test_deployment.py", "five_rounds"),
  ),
  Fault(
    "saving: the schedule is lost",
    "tff_algos/templates/saving.py",
    'schedule=manifest["schedule"],',
    'schedule=manifest["kinds"][-1:],',
    _of("templates/test_saving.py", "loaded_process"),
  ),
  # Runtimes.
  Fault(
    "blocks: clients of other sizes are mixed up",
    "tff_algos/runtimes/blocks.py",
    "places = np.argsort([c for clients in groups.values() for c in clients])",
    "places = np.arange(len(lengths))",
    ("tests/runtimes/test_blocks.py",),
  ),
  Fault(
    "blocks: contents of other lengths share a batch",
    "tff_algos/runtimes/blocks.py",
    "np.concatenate([lengths, *_lengths_of_strings(own)], axis=1)",
    "np.ones_like(lengths)",
    ("tests/runtimes/test_blocks.py",),
  ),
  Fault(
    "blocks: where one takes the first branch, all do",
    "tff_algos/runtimes/private_apis.py",
    "tf.reduce_all(condition.t)",
    "tf.reduce_any(condition.t)",
    ("tests/runtimes/test_vectorised_forms.py", "-k", "branches"),
  ),
  Fault(
    "seeds: those of a cohort are not those of its clients",
    "tff_algos/simulation/seeds.py",
    "itertools.permutations(range(4), 2)",
    "itertools.combinations(range(4), 2)",
    ("tests/simulation/test_seeds.py",),
  ),
  Fault(
    "blocks: where the memory ends, one half of a block is left out",
    "tff_algos/runtimes/blocks.py",
    "for these in (slice(half), slice(half, None))",
    "for these in (slice(half), slice(half))",
    ("tests/runtimes/test_convolutions.py",),
  ),
  Fault(
    "convolutions: filters are not turned round",
    "tff_algos/runtimes/convolutions.py",
    "tf.reverse(weights, [1, 2])",
    "weights",
    ("tests/runtimes/test_convolutions.py",),
  ),
  Fault(
    "convolutions: TensorFlow's loop instead of the forms",
    "tff_algos/runtimes/blocks.py",
    "{**convolutions.FORMS, **vectorised_forms.FORMS_FOR_OWN_INPUTS}",
    "{**vectorised_forms.FORMS_FOR_OWN_INPUTS}",
    ("tests/runtimes/test_convolutions.py",),
  ),
  Fault(
    "draws: a counter does not carry",
    "tff_algos/runtimes/random_draws.py",
    "counter[:, 1:] + tf.cast(low < groups, tf.uint64)",
    "counter[:, 1:]",
    ("tests/runtimes/test_random_draws.py",),
  ),
  Fault(
    "pooling loops: a body that is set apart is put back into the graph around it",
    "tff_algos/runtimes/pooling_loops.py",
    'work.attr["_noinline"].b = True',
    "pass",
    _of("runtimes/test_pooling_loops.py", "one_dnn"),
  ),
  Fault(
    "pooling loops: results in another order",
    "tff_algos/runtimes/pooling_loops.py",
    "enumerate(signature.output_arg)",
    "enumerate(reversed(signature.output_arg))",
    ("tests/runtimes/test_pooling_loops.py",),
  ),
  Fault(
    "vectorised forms: what one client lacks in rank is left to TensorFlow to broadcast",
    "tff_algos/runtimes/private_apis.py",
    "for _ in range(highest - rank):",
    "for _ in range(0):",
    ("tests/runtimes/test_vectorised_forms.py",),
  ),
  Fault(
    "accumulation: several clients at once, one left out",
    "tff_algos/runtimes/accumulation.py",
    "[tf.add_n(terms) for terms in zip(*leaves)]",
    "[tf.add_n(terms[:-1]) for terms in zip(*leaves)]",
    ("tests/runtimes/test_in_process.py",),
  ),
  Fault(
    "runtime: TensorFlow's memory optimizer names one variable for all threads",
    "tff_algos/runtimes/private_apis.py",
    "rewrites.memory_optimization = rewrites.NO_MEM_OPT",
    "pass",
    _of("runtimes/test_in_process.py", "large_sums"),
  ),
  Fault(
    "programs: JAX is imported with TensorFlow",
    "tff_algos/preflight.py",
    'if package.name != "tensorflow" or "jax" in sys.modules:',
    "if True:",
    _of("test_preflight.py", "put_off"),
  ),
  Fault(
    "planning: what an aggregate reports is left out",
    "tff_algos/runtimes/planning.py",
    'return Node("map", result_type, [total], report)',
    "return total",
    _of("runtimes/test_in_process.py", "every_use_of_an_aggregate"),
  ),
  Fault(
    "runtime: the context before does not come back",
    "tff_algos/runtimes/runtime.py",
    "tff.framework.set_default_context(here.pop().before)",
    "here.pop()",
    _of("runtimes/test_runtime.py", "brings_back_the_context"),
  ),
  Fault(
    "devices: what is added is left where it was",
    "tff_algos/runtimes/execution.py",
    "sums.copied(result) if is_copied else result",
    "result",
    _of("runtimes/test_devices.py", "first_device"),
  ),
  Fault(
    "runtime: other threads are not served",
    "tff_algos/runtimes/private_apis.py",
    "    shared.invoke = context.invoke\n",
    "    pass\n",
    _of("runtimes/test_runtime.py", "serves_threads"),
  ),
  # Simulation.
  Fault(
    "programs: one that goes on begins with the first cohort",
    f"{_SIMULATION}client_source.py",
    'cls(clients, content["seed"], content["rounds_done"])',
    'cls(clients, content["seed"])',
    _of("simulation/test_program.py", "goes_on or written_down"),
  ),
  Fault(
    "programs: what clients keep is not saved",
    f"{_SIMULATION}program.py",
    "leaves_of.update(zip(places, map(tree.flatten, output.client_states)))",
    "pass",
    _of("simulation/test_program.py", "died_goes_on"),
  ),
  Fault(
    "cohorts: with replacement",
    f"{_SIMULATION}cohorts.py",
    "replace=False",
    "replace=True",
    ("tests/simulation/test_cohorts.py",),
  ),
  Fault(
    "seeds: one for all clients",
    f"{_SIMULATION}seeds.py",
    'sequence(seed, "client", round_num, place)',
    'sequence(seed, "client", round_num)',
    ("tests/simulation/test_seeds.py",),
  ),
  Fault(
    "checkpoints: a changed client is not saved again",
    f"{_SIMULATION}client_state_store.py",
    "      self._changed.add(place)",
    "      self._changed = set() or {place}",
    ("tests/simulation/test_client_state_store.py",),
  ),
  Fault(
    "checkpoints: the oldest is read",
    f"{_SIMULATION}checkpoints.py",
    "sorted(filter(_NAME.match, names), reverse=True)",
    "sorted(filter(_NAME.match, names))",
    ("tests/simulation/test_checkpoints.py",),
  ),
  Fault(
    "checkpoints: damage is not looked for",
    f"{_SIMULATION}checkpoints.py",
    "if digests is not None and",
    "if False and digests is not None and",
    ("tests/simulation/test_checkpoints.py",),
  ),
  Fault(
    "checkpoints: only the last is kept",
    f"{_SIMULATION}checkpoints.py",
    "_KEPT = 2",
    "_KEPT = 1",
    ("tests/simulation/test_checkpoints.py",),
  ),
  Fault(
    "client states: swapped ones are taken",
    f"{_SIMULATION}client_state_store.py",
    "if _digest_of(version.place, value) != version.digest:",
    "if False:",
    ("tests/simulation/test_client_state_store.py",),
  ),
  Fault(
    "client states: those of the checkpoint before go",
    f"{_SIMULATION}client_state_store.py",
    "    self._old = [self._saved[v.place] for v in new if v.place in self._saved]\n",
    """    file.executemany(
      "DELETE FROM states WHERE id = ?",
      [(self._saved[v.place].id,) for v in new if v.place in self._saved],
    )
    file.commit()
    self._old = []
""",
    ("tests/simulation/test_client_state_store.py",),
  ),
  Fault(
    "durable files: a name comes before its content",
    "tff_algos/durable_files.py",
    "        sync_file(file)\n",
    "",
    ("tests/test_durable_files.py",),
  ),
  Fault(
    "client states: what a full disk has undone is taken for written",
    f"{_SIMULATION}client_state_store.py",
    "      self._error = error\n",
    "",
    ("tests/simulation/test_client_state_store.py",),
  ),
  Fault(
    "checkpoints: a full disk leaves a half one",
    f"{_SIMULATION}checkpoints.py",
    """  except Exception:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise
""",
    """  except Exception:
    raise
""",
    ("tests/simulation/test_checkpoints.py",),
  ),
  Fault(
    "parts: they are joined from the left",
    "tff_algos/runtimes/accumulation.py",
    "while self._joined and self._joined[-1][0] == count:",
    "while self._joined:",
    ("tests/runtimes/test_parts.py",),
  ),
  Fault(
    "dask: an address on a network needs no TLS",
    "tff_algos/runtimes/dask_cluster.py",
    "elif not _is_loopback(host):",
    "elif False:",
    ("tests/runtimes/test_dask.py",),
  ),
  Fault(
    "records: a diverged run has no best",
    f"{_SIMULATION}records.py",
    "[r for r in measured if math.isfinite(r[metric])]",
    "list(measured)",
    ("tests/simulation/test_records.py",),
  ),
  Fault(
    "availability: late results count",
    f"{_SIMULATION}availability.py",
    "[place for place in there if seconds[place] <= deadline]",
    "there",
    _of("simulation/test_availability.py", "late"),
  ),
  Fault(
    "loop: a round has the learning rate of the one before",
    f"{_SIMULATION}loop.py",
    "rate = rates[rounds_done]",
    "rate = rates[max(rounds_done - 1, 0)]",
    _of("simulation/test_loop_options.py", "its_rate"),
  ),
  Fault(
    "loop: an evaluation that was not planned ends a run",
    f"{_SIMULATION}loop.py",
    'planned = [r for r in records if r["round"] % settings.eval_every == 0]',
    "planned = records",
    _of("simulation/test_loop.py", "planned"),
  ),
  Fault(
    "client evaluation: of the examples that the steps were on",
    f"{_SIMULATION}client_evaluation.py",
    "_rows(examples, order[n // 2 :])",
    "_rows(examples, order[: n // 2])",
    ("tests/simulation/test_client_evaluation.py",),
  ),
  # Client files.
  Fault(
    "client files: inputs that are not finite are written",
    "tff_algos/client_data.py",
    "    if spec.x.dtype.is_floating:\n",
    "    if False:\n",
    _of("test_client_data.py", "finite"),
  ),
  Fault(
    "client files: checksums are not compared",
    "tff_algos/client_data.py",
    "self._checksums is None or checksum == self._checksums[place]",
    "True",
    _of("test_client_data.py", "written_is_found"),
  ),
  Fault(
    "client files: a change of the same size is not seen",
    "tff_algos/client_data.py",
    "return found.st_size, found.st_mtime_ns, found.st_ino",
    "return found.st_size, 0, 0",
    _of("test_client_data.py", "written_is_found"),
  ),
  Fault(
    "client files: not looked at before they are first read",
    f"{_SIMULATION}client_files.py",
    "self._clients.check_files([c for c in clients if c not in self._read], when)",
    "pass",
    _of("simulation/test_client_files.py", "swapped"),
  ),
  Fault(
    "client files: not looked at where a round fails",
    f"{_SIMULATION}client_files.py",
    "      self._clients.check_files(clients, when, again=True)\n",
    "",
    _of("simulation/test_client_files.py", "broken_in_a_run and in_process"),
  ),
  Fault(
    "client files: not looked at where clients are dropped",
    f"{_SIMULATION}loop.py",
    '.get("num_dropped", 0):',
    '.get("num_dropped", 0) < 0:',
    _of("simulation/test_client_files.py", "broken_in_a_run and in_process"),
  ),
  Fault(
    "loop: a round that fails takes those before it with it",
    f"{_SIMULATION}loop.py",
    "if folder and round_num > saved:",
    "if False:",
    _of("simulation/test_client_files.py", "broken_in_a_run and in_process"),
  ),
  Fault(
    "client source: files are not looked at",
    f"{_SIMULATION}client_source.py",
    '    self._clients.check_files(ids, f" in round {self._rounds_done + 1}")\n',
    "",
    _of("simulation/test_program.py", "breaks"),
  ),
  Fault(
    "tasks: a name leads out of the cache",
    "tasks/loading.py",
    "os.path.basename(name) != name or not",
    "not",
    _of("tasks/test_loading.py", "lead_out"),
  ),
  # Runs and tables.
  Fault(
    "run folder: hyper-parameters are not compared",
    "experiments/run_folder/folder.py",
    "for heading, settings in json.loads(json.dumps(dict(now))).items():",
    'for heading, settings in [("flags", json.loads(json.dumps(dict(now["flags"]))))]:',
    ("tests/experiments/run_folder/test_folder.py",),
  ),
  Fault(
    "run folder: earlier sessions are lost",
    "experiments/run_folder/folder.py",
    "[*earlier, session]",
    "[session]",
    ("tests/experiments/run_folder/test_folder.py",),
  ),
  Fault(
    "tables: rounds to a target, one late",
    "experiments/tables/measures.py",
    "zip(curve.rounds, curve.accuracy) if a >= target), None)",
    "zip(curve.rounds, curve.accuracy) if a > target), None)",
    ("tests/experiments/tables/test_measures.py",),
  ),
  # What clients that lie can do, and rounding that differs from run to run.
  Fault(
    "sums: three terms are left to TensorFlow's optimizer",
    f"{_CLIENT_WORK}tree_math.py",
    "x - opposite * y for x, y in zip(a, b)",
    "x + scale * y for x, y in zip(a, b)",
    _of("conformance/test_optimized_sums.py", "fedgg"),
  ),
  Fault(
    "median: clients that were dropped count",
    "tff_algos/aggregators/coordinate_wise.py",
    "tf.cast(weight > 0, tf.int32)",
    "tf.cast(weight >= 0, tf.int32)",
    ("tests/aggregators/test_coordinate_wise.py",),
  ),
  Fault(
    "trimmed mean: the largest stay",
    "tff_algos/aggregators/coordinate_wise.py",
    "ordered[cut : count - cut]",
    "ordered[cut:]",
    ("tests/aggregators/test_coordinate_wise.py",),
  ),
  Fault(
    "norm limit: who is dropped keeps its new state",
    "tff_algos/templates/norm_limits.py",
    "drop_unless(~too_long, output, old_client_state)",
    "drop_unless(~too_long, output, output.client_state)",
    _of("conformance/test_norm_limit.py", "scaffold"),
  ),
  Fault(
    "norm limit: who is dropped does not count for the median",
    "tff_algos/templates/norm_limits.py",
    "OrderedDict(kept.weight, **{part: output.weight[part]})",
    "kept.weight",
    _of("conformance/test_norm_limit.py", "grow"),
  ),
  Fault(
    "temporal weighting: what is taken back has today's number of examples",
    "tff_algos/aggregators/temporal_weighting.py",
    'tf.where(memory["round_num"] > 0, memory["weight"], weight)',
    "weight",
    _of("aggregators/test_temporal_weighting.py", "may_change"),
  ),
  Fault(
    "dask: parts are joined that the tree joins to others",
    "tff_algos/runtimes/accumulation.py",
    "size = 1 << (share.bit_length() - 1)",
    "size = min(share, num_parts - start)",
    ("tests/runtimes/test_parts.py",),
  ),
  Fault(
    "dask: jobs go to the worker that has most to do",
    "tff_algos/runtimes/dask_placement.py",
    "worker = min(parts",
    "worker = max(parts",
    ("tests/runtimes/test_dask_placement.py",),
  ),
  # Models that are taken out.
  Fault(
    "A client's value is cut to fit its type",
    "tff_algos/runtimes/values.py",
    "  if not is_held.all():\n",
    "  if False:\n",
    _of("runtimes/test_in_process.py", "type_does_not_hold"),
  ),
  Fault(
    "A thread that leaves a runtime takes another's context",
    "tff_algos/runtimes/runtime.py",
    "      self._leave(own[-1])\n",
    "      self._leave(self._installations[-1])\n",
    _of("runtimes/test_runtime.py", "thread"),
  ),
  Fault(
    "A run is resumed with another seed",
    "tff_algos/simulation/loop.py",
    "    origin.check(began_with, found.origin, folder)\n",
    "",
    _of("simulation/test_loop.py", "origin"),
  ),
  Fault(
    "Seeds of other data are averaged",
    "experiments/tables/cells.py",
    "    if names:\n      raise",
    "    if not names and held is found:\n      raise",
    _of("experiments/tables/test_cells.py", "other_data"),
  ),
  Fault(
    "A checkpoint is evaluated with another network",
    "experiments/preparation.py",
    "  if found:\n    what",
    "  if False:\n    what",
    _of("binaries/test_evaluate.py", "another_model"),
  ),
  Fault(
    "Labels of a test set are cut to the model's dtype",
    "tff_algos/simulation/evaluation.py",
    '  x, y = client_arrays.as_stored("the evaluation", x, y, model.example_spec)\n',
    "",
    _of("simulation/test_evaluation.py", "do_not_fit"),
  ),
  Fault(
    "A seed's draw of initial weights overwrites a pretrained base",
    "tff_algos/models/keras.py",
    "      if value.ref() not in trained:\n        continue\n",
    "",
    _of("tasks/test_loading.py", "pretrained"),
  ),
  Fault(
    "A run is gone on with on another frozen base",
    "experiments/run_folder/fingerprints.py",
    "  if frozen:\n",
    "  if not frozen:\n",
    _of("experiments/run_folder/test_fingerprints.py", "frozen"),
  ),
  Fault(
    "A random value that TFF draws once is drawn by each client",
    "tff_algos/runtimes/execution.py",
    "    compiler.refuse_repeated_draws(block)\n",
    "",
    _of("runtimes/test_in_process.py", "draw"),
  ),
  Fault(
    "to_keras: stored pictures are not scaled",
    "tff_algos/models/to_keras.py",
    "1 / 255 if inputs.dtype == tf.uint8 else 1.0",
    "1.0",
    ("tests/models/test_to_keras.py",),
  ),
  Fault(
    "to_keras: frozen weights as they are later",
    "tff_algos/models/to_keras.py",
    "self._values.get(v.ref(), v)",
    "self._values.get(v.ref() if v.trainable else None, v)",
    _of("models/test_to_keras.py", "frozen"),
  ),
  Fault(
    "best round: a round measured only for being stopped at counts",
    f"{_SIMULATION}best_round.py",
    'record["round"] % eval_every == 0',
    "eval_every > 0",
    _of("simulation/test_loop.py", "best_round"),
  ),
  Fault(
    "best round: the last of those that are as good",
    f"{_SIMULATION}best_round.py",
    "value <= best.value",
    "value < best.value",
    _of("simulation/test_loop.py", "best_round"),
  ),
  Fault(
    "export: recurrent layers go on where the last call ended",
    "experiments/export/formats.py",
    "layer._could_use_gpu_kernel = False",
    "pass",
    _of("experiments/export/test_formats.py", "memory"),
  ),
  Fault(
    "export: training on a device goes up the gradient",
    "experiments/export/signatures.py",
    "variable.assign_sub(",
    "variable.assign_add(",
    _of("experiments/export/test_formats.py", "plain_sgd"),
  ),
)
