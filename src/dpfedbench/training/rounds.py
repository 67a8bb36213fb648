"""The rounds of one run.

Mechanisms (`dpsum`) keep sums, noise and budgets. A value computed from private data
leaves only as a release of a mechanism. Training loss, raw norms and the number of
contributions that were not finite are therefore recorded only in runs that claim no
privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.data.holdings import Records, Tasks
from dpfedbench.data.text_tasks import TextTasks
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.features import features_of
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.evaluation.held_out import HeldOutMeasures, NoMeasures, check_classes
from dpfedbench.evaluation.next_word import TextMeasures
from dpfedbench.evaluation.personal_test import client_accuracies, summarize_clients
from dpfedbench.method import Method
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.references import reference
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.models.torch_sums import TORCH
from dpfedbench.parts import proof_assumptions
from dpfedbench.parts.clipping.reference import ReferenceRule
from dpfedbench.results_format import GROUP_THRESHOLDS, NORMS
from dpfedbench.training.client_updates.client_update import Clients, Row, Setup, Stream
from dpfedbench.training.processes import Processes
from dpfedbench.training.together import add_together
from dpsum.composition import Composition
from dpsum.mechanism import Mechanism, Observer, ReleaseLog
from dpsum.randomness import stream


def first_threshold(run: Method, references: Mapping[str, Path]) -> float | None:
    """Return the first threshold that a rule reads from another run, or None."""
    for rule in (sum_.clipping for sum_ in run.sums()):
        if isinstance(rule, ReferenceRule):
            name = rule.reference_file
            path = reference(references, name, run.references[name].folder)
            return float(rule.first_threshold(path, run))
    return None


class Rounds:
    """Rounds of one run, which apply the method's parts to a model.

    Args:
        run: the run.
        net: the model.
        held: the data of the clients.
        gradients: implementation of the model's gradients.
        measures: validation and test of the model during training.
        ledger: ledger to which releases are appended.
        threads: CPU threads; changes no bit of the result.
        observer: receives each release of a private sum.
        clients: clients that an audit uses in place of those of the client update.
        first: first clipping threshold, where another run and not the configuration
            gives it.
        plan: participation plan; None: that of the configuration.
        processes: the processes that train the run together.
        weights: initial weights, float32 [d]; None: the network's random
            initialisation.
        shared: coordinates that clients share, in an audit's model; None: those of the
            method.
    """

    def __init__(
        self,
        run: Method,
        *,
        net: Any,
        held: Any,
        gradients: Choice,
        measures: Any,
        ledger: ReleaseLog,
        threads: int = 1,
        observer: Observer | None = None,
        clients: Clients | None = None,
        first: float | None = None,
        plan: Any = None,
        processes: Processes | None = None,
        weights: np.ndarray | None = None,
        shared: SharedCoordinates | None = None,
    ) -> None:
        if (
            weights is None
        ):  # an audit: its releases do not depend on the initial weights
            weights = net.initial(stream(run.seed, "initial-weights"))
        self.run = run
        self.net = net
        self.gradients = gradients
        self.measures = measures
        self.step = run.server
        self.planned = run.participation.rounds
        self.threads = threads
        self.processes = processes or Processes()
        self.plan = plan or run.plan
        self.held = held
        self.shared = shared or SharedCoordinates(net, run.shared_mask(net))
        self.ledger = ledger
        unaccounted = (
            *run.unaccounted_releases,
            *getattr(held, "unaccounted_releases", ()),
        )
        self.composition = Composition(
            claims=run.counted_claims,
            sums=run.sums(),
            unaccounted_releases=tuple(dict.fromkeys(unaccounted)),
            unaccounted_units=run.unaccounted_units,
        )
        create_mechanism = functools.partial(
            Mechanism,
            composition=self.composition,
            ledger=ledger,
            seed=run.stream_seed,
            observer=observer,
            arithmetic=TORCH,
        )
        setup = Setup(
            run=run,
            net=net,
            held=held,
            gradients=gradients,
            client_sums=run.client_sums,
            create_mechanism=create_mechanism,
            plan=self.plan,
            threads=threads,
            first=first,
            processes=self.processes,
            weights=weights,
            shared=self.shared,
        )
        self.clients = clients or run.client.clients(setup)
        if clients is None:
            taken = [mechanism.spec.name for mechanism in self.composition.mechanisms]
            proof_assumptions.check_clients(run, self.clients, taken)
        self.server = create_mechanism(
            run.server_sum,
            participation=self.plan,
            denominator=self.plan.denominator * self.clients.contributions_per_client,
            dimension=self.shared.count,
            plain_sum=self.step.plain_sum,
            groups=self.shared.groups(setup.groups_of(run.server_sum)),
            first_threshold=None if first is None else lambda: first,
        )
        # Further sums are divided by the number of all clients: they change a mean over
        # all clients' states, whichever clients take part in the round.
        self.further = [
            create_mechanism(
                sum_,
                participation=self.plan,
                denominator=float(run.clients.count),
                dimension=self.shared.count,
                groups=self.shared.groups(setup.groups_of(sum_)),
            )
            for sum_ in run.further_sums
        ]
        self.composition.finalize()
        self._elsewhere = 0
        self.theta = torch.from_numpy(weights.copy())
        self._state = self.step.begin(self.shared.select(self.theta))
        self.step.receive_layout(self._state, self.shared)
        self.columns = [*measures.columns, *run.client.columns(run)]
        if self.server.spec.noise is not None:
            self.columns += self.server.spec.noise.public_columns
        if self.server.groups is not None:
            self.columns += GROUP_THRESHOLDS
        if not run.private and self.clients.served != "records":
            self.columns += NORMS

    @classmethod
    def from_run(
        cls,
        run: Method,
        *,
        data_dir: Path,
        clients_dir: Path,
        ledger: ReleaseLog,
        device: str = "cpu",
        kernels: bool = True,
        threads: int = 1,
        references: Mapping[str, Path] | None = None,
        **options: Any,
    ) -> Rounds | Untrained:
        """Return the rounds of a run on its own data.

        The arguments are those of `engine.train`; further ones are those of this class.

        Raises:
            BenchError: data are missing or damaged, or the model does not fit them.
        """
        held = _held(run, data_dir, clients_dir, references)
        net = run.net(held.dataset.image_shape, _classes(run, held.dataset), references)
        net.check()
        net.words = getattr(held.dataset, "words", ())
        weights = run.initial.weights(run, net, references or {})
        gradients = choose(net, device=device, enabled=kernels)
        by_record = run.within_records or any(
            sum_.unit == "record" for sum_ in run.private_sums
        )
        # Compiled passes exist for known networks only, and the settings checked those.
        # Importing Opacus takes a second.
        if by_record and run.model.record_level and gradients.name.startswith("torch"):
            net.refuse_record_level()
        if not run.trained:
            return Untrained(net, gradients, options.get("processes"), weights)
        if run.pretrains:
            # No held-out records: the meta-test has other classes.
            measures: Any = NoMeasures()
        elif run.client_data == "records":
            check_classes(run, held.dataset)
            measures = HeldOutMeasures(
                run, held.dataset, gradients, threads=threads, files=references
            )
        elif run.task.text is not None:
            measures = TextMeasures(
                run=run, known=held.dataset, choice=gradients, threads=threads
            )
        else:
            measures = FewShotMeasures(
                run=run,
                dataset=held.dataset,
                choice=gradients,
                net=net,
                threads=threads,
            )
        return cls(
            run,
            net=net,
            held=held,
            gradients=gradients,
            measures=measures,
            ledger=ledger,
            threads=threads,
            weights=weights,
            **options,
        )

    def round(self, index: int) -> tuple[Row, int]:
        """Run one round; return its row of the history and its clients or records.

        Of a private run that number is the expected one, unless the plan fixes the
        number: the realised number is private.
        """
        self.processes.broadcast(("round", index, self.theta.numpy(), self._states()))
        cohort, (total, *further_totals), losses = self._contributed(index)
        released = torch.from_numpy(self.server.release(total))
        means = [
            self.shared.expanded(mechanism.release(message) / mechanism.denominator)
            for mechanism, message in zip(self.further, further_totals, strict=True)
        ]
        if means:
            self.processes.broadcast(("broadcast", means))
            self.clients.receive_broadcast(means)
        row = self.clients.row()
        if row is None:
            row = self._row(total, released, cohort, losses)
        elif self.run.private:
            proof_assumptions.check_row(row, self.run.client.kind)
        self.step.set_noise_deviation(
            self._state, total.deviation / self.server.denominator
        )
        mean = self.step.mean(released, self.server.denominator)
        weights = self.shared.select(self.theta)
        self.step.step(weights, mean, self._state, index=index, rounds=self.planned)
        self.shared.put(self.theta, weights)
        self._refuse_not_finite(row, index=index, count=getattr(total.sum, "count", 0))
        served = self.clients.work(cohort)
        if served is None and self.server.spec.private:
            served = int(self.plan.denominator)
        return row, len(cohort) if served is None else served

    def _refuse_not_finite(self, row: Row, *, index: int, count: int) -> None:
        """Stop a training if its model or all contributions of a round are not finite.

        Of a private run only the model is checked: the number of its finite
        contributions is not a release.

        Args:
            row: the round's row of the history.
            index: number of the round, from 0.
            count: number of contributions to the server's sum.
        """
        bad = self.non_finite
        # The loss of clients that sum over their own records leaves out values that are
        # not finite, unless no value is finite.
        no_loss = self.run.client_data == "records" and math.isnan(row.get("loss", 0.0))
        if not self.run.private and bad and (bad == count or no_loss):
            fault = "none of its contributions is"
        elif not torch.isfinite(self.theta).all():
            fault = "the model is no longer"
        else:
            return
        raise BenchError(
            f"training stops in round {index + 1}, since {fault} finite: lower"
            " server.rate or client_update.inner_rate or, in a private run,"
            " clipping.threshold or noise.multiplier"
        )

    @property
    def non_finite(self) -> int:
        """Number of contributions of the round that were not finite.

        They counted as zero. The number is that of all processes.
        """
        return self._elsewhere + sum(
            mechanism.non_finite for mechanism in self.composition.mechanisms
        )

    def help(self, command: str, *arguments: Any) -> None:
        """Do this process's part of a command of the first process.

        The command is a round, a checkpoint, a restart from one, or a test.
        """
        if command == "round":
            self.theta.copy_(torch.from_numpy(arguments[1]))
            self._take_states(arguments[2])
            self._contributed(arguments[0])
        elif command == "state":
            self.clients.state()
        elif command == "broadcast":
            self.clients.receive_broadcast(*arguments)
        elif command == "personal test":
            self._client_accuracies(*arguments)
        else:
            self.clients.restore(*arguments)

    def _contributed(
        self, index: int
    ) -> tuple[np.ndarray, list[Any], list[np.ndarray]]:
        """Return a round's cohort, the sums of its contributions, and its losses.

        The sums and the losses are complete in the first process only.
        """
        for mechanism in self.composition.mechanisms:
            mechanism.non_finite = 0
        cohort = self.plan.sample_cohort(index)
        losses = list[np.ndarray]()
        totals = [
            mechanism.begin_round(index) for mechanism in (self.server, *self.further)
        ]

        def stream_of(some: np.ndarray) -> Stream:
            stream = self.clients.contributions(self.theta.numpy(), some, index)
            for rows, some_losses in stream:
                yield self.shared.select(rows), some_losses

        if self.processes.count > 1 and not self.clients.divides:
            size = self.gradients.chunk(self.threads)
            blocks = self.processes.blocks(
                len(cohort), size, fixed=self.gradients.device != "cpu"
            )
            losses = add_together(
                self.processes,
                totals[0],
                stream_of,
                cohort,
                blocks,
                contributions_per_client=self.clients.contributions_per_client,
            )
        else:
            rows = 0
            for contributions, chunk_losses in stream_of(cohort):
                if self.processes.first:
                    messages = contributions if self.further else [contributions]
                    rows += len(messages[0])
                    self._check_count(rows, len(cohort))
                    for total, message in zip(totals, messages, strict=True):
                        total.add(message)
                    losses.append(chunk_losses)
        counted = sum(mechanism.non_finite for mechanism in self.composition.mechanisms)
        self._elsewhere = sum(self.processes.gather(counted)) - counted
        return cohort, totals, losses

    def _check_count(self, rows: int, clients: int) -> None:
        """Refuse more contributions to a sum over clients than there are clients."""
        sum_ = self.server.spec
        if sum_.private and sum_.unit == "client" and rows > clients:
            raise BenchError(
                f"clients made more contributions to {sum_.name} than the cohort has"
                " clients, but its account covers one contribution for each client:"
                " yield one row for each client"
            )

    def _row(
        self,
        total: Any,
        released: torch.Tensor,
        cohort: np.ndarray,
        losses: list[np.ndarray],
    ) -> Row:
        norm = float(released.norm())
        if self.server.spec.private:
            return {
                "clients": self.plan.denominator,
                "threshold": total.sum.threshold,
                "released_norm": norm,
                "noise_multiplier": total.sum.noise_multiplier,
                **total.sum.public_values,
                **_group_thresholds(total.sum),
            }
        if self.run.private:
            # Each contribution is a client's own release, so that the norm of the sum
            # may be published; losses may not.
            return {"clients": self.plan.denominator, "released_norm": norm}
        quantiles = np.quantile(total.norms or [np.nan], [0.1, 0.5, 0.9])
        return {
            "clients": len(cohort),
            "loss": float(np.mean(np.concatenate(losses))) if losses else np.nan,
            **dict(zip(NORMS, quantiles.tolist(), strict=True)),
            "released_norm": norm,
        }

    def state(self) -> dict[str, Any]:
        """Return everything that a restart needs."""
        self.processes.broadcast(("state",))
        return {
            "theta": self.theta.clone(),
            "step": self._state,
            "clients": self.clients.state(),
            "mechanisms": self._states(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self.theta.copy_(state["theta"])
        self._state = state["step"]
        self.processes.broadcast(("restore", state["clients"]))
        self.clients.restore(state["clients"])
        self._take_states(state["mechanisms"])

    def personal_test(self) -> dict[str, Any]:
        """Test each client's own model on the examples that training held out.

        Returns:
            The columns of `evaluation.personal_test`; none where nothing was held out.
        """
        if not self.run.clients.held_out_share:
            return {}
        self.processes.broadcast(("personal test", self.theta.numpy()))
        accuracies: dict[int, float] = {}
        for by_client in self._client_accuracies(self.theta.numpy()):
            accuracies |= by_client
        if not accuracies:
            raise BenchError(
                "clients.held_out_share leaves no test examples, since no client has"
                " two records: set it to 0"
            )
        return summarize_clients(np.array([accuracies[n] for n in sorted(accuracies)]))

    def _client_accuracies(self, theta: np.ndarray) -> list[dict[int, float]]:
        """Return the accuracies of this process's clients.

        The first process gets the accuracies of all processes, one mapping for each.
        """
        here = client_accuracies(
            self.run,
            self.net,
            self.clients,
            self.held,
            self.gradients,
            theta,
            self.processes.share(self.run.clients.count),
            threads=self.threads,
        )
        return self.processes.gather(here)

    def _states(self) -> list[dict[str, Any]]:
        return [mechanism.state() for mechanism in self.composition.mechanisms]

    def _take_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        for mechanism, state in zip(self.composition.mechanisms, states, strict=True):
            mechanism.restore(state)


def _group_thresholds(total: Any) -> Row:
    """Return the smallest and the largest threshold of a sum's groups."""
    if total.groups is None:
        return {}
    ends = min(total.thresholds), max(total.thresholds)
    return dict(zip(GROUP_THRESHOLDS, ends, strict=True))


class Untrained:
    """Stand-in for the rounds of a method that does not train, such as `random`."""

    planned = 0
    columns = ()
    measures = NoMeasures()
    threads = 1
    non_finite = 0
    shared = None

    def personal_test(self) -> dict[str, Any]:
        """Return no columns: no client has a model of its own."""
        return {}

    def __init__(
        self,
        net: Any,
        gradients: Choice,
        processes: Processes | None,
        weights: np.ndarray,
    ) -> None:
        self.net = net
        self.gradients = gradients
        self.processes = processes or Processes()
        self.theta = torch.from_numpy(weights.copy())
        self.clients = Clients()
        self.composition = Composition()

    def round(self, index: int) -> tuple[Row, int]:
        """Raise an error: no round is planned."""
        raise RuntimeError("an untrained model has no rounds")

    def state(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


def _held(
    run: Method, data_dir: Path, clients_dir: Path, files: Mapping[str, Path] | None
) -> Any:
    if run.client_data == "records":
        held = Records(data_dir, clients_dir)
        share = run.clients.held_out_share
        if share:
            held.leave_out(share, seed=run.seed)
        held.images = features_of(run, held.dataset, held.record_indices, files)
        if share:
            held.test_images = features_of(
                run, held.dataset, held.test_record_indices, files
            )
        return held
    support = run.clients.support_per_class
    query = run.clients.query_per_class
    if run.task.text is not None:
        return TextTasks(
            data_dir, clients_dir, run.task.text, support=support, query=query
        )
    return Tasks(
        data_dir, clients_dir, support_per_class=support, query_per_class=query
    )


def _classes(run: Method, dataset: Any) -> int:
    return len(dataset.class_names) if run.client_data == "records" else run.task.ways
