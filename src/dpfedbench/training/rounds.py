"""The rounds of one run.

A round follows Algorithm 2 of DP-FedMeta for every method: sample a cohort, let its
clients compute, clip and add their contributions, release the sum, step.

Mechanisms (`dpsum`) keep sums, noise and budgets. A value computed from private data
leaves only as a release of a mechanism. Training loss, raw norms and the number of
contributions that were not finite are therefore recorded only in runs that claim no
privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dpfedbench.breaches import unaccounted_releases, unaccounted_units
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.personal_test import client_accuracies, merge_accuracies
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.parts.server.server_step import RoundReleases
from dpfedbench.run import Run
from dpfedbench.training import history, proof_assumptions
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.distributed import Messages, Processes, in_all_processes
from dpfedbench.training.federation import Federation
from dpfedbench.training.history import Row
from dpfedbench.training.mechanisms import Mechanisms
from dpfedbench.training.server_sums import ServerSums
from dpsum.composition import Composition
from dpsum.mechanism import Observer, ReleaseLog
from dpsum.randomness import stream


class Rounds:
    """Rounds of one run, which apply the method's parts to a model.

    Args:
        run: the run.
        federation: the clients' data, the model and its tests.
        ledger: ledger to which releases are appended.
        threads: CPU threads; changes no bit of the result.
        observer: receives each release of a private sum.
        clients: clients that an audit uses in place of those of the client update.
        first_threshold: first clipping threshold, where another run gives it.
        plan: participation plan; None: that of the configuration.
        processes: the processes that train the run together.
        shared: coordinates that clients share, in an audit's model; None: those of the
            method.

    Attributes:
        theta: weights of the model, float32 [d].
        planned: number of rounds of the configuration.
        columns: columns of the history that a round fills.
    """

    def __init__(
        self,
        run: Run,
        federation: Federation,
        *,
        ledger: ReleaseLog,
        threads: int = 1,
        observer: Observer | None = None,
        clients: Clients | None = None,
        first_threshold: float | None = None,
        plan: Any = None,
        processes: Processes | None = None,
        shared: SharedCoordinates | None = None,
    ) -> None:
        net = federation.net
        weights = federation.weights
        if weights is None:
            weights = net.initial(stream(run.seed, "initial-weights"))
        self.run = run
        self.net = net
        self.held = federation.held
        self.gradients = federation.gradients
        self.measures = federation.measures
        self.step = run.server
        self.planned = run.participation.rounds
        self.threads = threads
        self.processes = processes or Processes()
        self.plan = plan or run.plan
        self.shared = shared or SharedCoordinates(net, run.shared_mask(net))
        self.ledger = ledger
        self.theta = torch.from_numpy(weights.copy())
        self._elsewhere = 0
        unaccounted = list(unaccounted_releases(run))
        unaccounted += getattr(self.held, "unaccounted_releases", ())
        self.composition = Composition(
            claims=run.counted_claims,
            sums=run.all_sums,
            unaccounted_releases=tuple(dict.fromkeys(unaccounted)),
            unaccounted_units=unaccounted_units(run),
        )
        mechanisms = Mechanisms(
            self.composition, ledger=ledger, seed=run.stream_seed, observer=observer
        )
        self.mechanisms = mechanisms.created
        setup = Setup(
            run=run,
            net=net,
            held=self.held,
            gradients=self.gradients,
            client_sums=run.client_sums,
            create_mechanism=mechanisms.create,
            threads=threads,
            first_threshold=first_threshold,
            processes=self.processes,
            weights=weights,
            shared=self.shared,
        )
        self.clients = clients or run.client_update.clients(setup)
        if clients is None:
            taken = [mechanism.spec.name for mechanism in self.mechanisms]
            proof_assumptions.check_clients(
                self.clients,
                run.all_sums,
                update=run.client_update,
                participation=run.participation,
                taken=taken,
            )
        self.sums = ServerSums(
            setup,
            plan=self.plan,
            mechanisms=mechanisms,
            clients=self.clients,
            # In an audit every sum has the coordinates of the audit's model.
            in_shapes=shared is None,
        )
        self._step_state = self.step.begin(self.shared.select(self.theta))
        self.step.receive_layout(self._step_state, self.shared)
        self.columns = [*self.measures.columns, *run.client_update.columns(run)]
        self.columns += history.server_columns(
            self.sums.model_sum, self.clients.unit, is_private=run.private
        )

    def round(self, index: int) -> tuple[Row, int]:
        """Run one round; return its row of the history and its clients or records.

        Of a private run that number is the expected one, unless the plan fixes the
        number: the realised number is private.
        """
        cohort = self.plan.sample_cohort(index)
        totals, losses = self._add_contributions(index, cohort)
        releases = self.sums.release(totals)
        if self.run.further_sums:
            self._receive_broadcast(self.sums.further_means(releases))
        released = releases[self.run.server_sum.name]
        row = self.clients.row()
        if row is None:
            clients = self.plan.denominator if self.run.private else len(cohort)
            row = history.server_row(self.run, totals[0], released, clients, losses)
        elif self.run.private:
            proof_assumptions.check_row(row, self.run.client_update.kind)
        self._make_step(releases, totals[0].deviation, index)
        count = getattr(totals[0].sum, "count", 0)
        self._refuse_not_finite(row, index=index, count=count)
        return row, self._work(cohort)

    @in_all_processes
    def _add_contributions(
        self, index: int, cohort: np.ndarray
    ) -> tuple[list[Any], list[np.ndarray]]:
        """Return the sums of a round's contributions, and the losses of the cohort.

        Both are complete in the main process only.
        """
        if self.processes.count > 1:
            state = self.processes.broadcast(self._model_state())
            if not self.processes.is_main:
                self._restore_model(state)
        for mechanism in self.mechanisms:
            mechanism.non_finite = 0
        totals = self.sums.begin_round(index)
        losses = self.processes.add(
            totals,
            functools.partial(self._contributions, index),
            cohort,
            divided=self.clients.divides,
            per_client=self.clients.contributions_per_client,
            choice=self.gradients,
            threads=self.threads,
        )
        self._elsewhere = 0
        counted = self.non_finite
        self._elsewhere = sum(self.processes.gather(counted)) - counted
        return totals, losses

    @property
    def non_finite(self) -> int:
        """Number of contributions of the last round, in all processes, that were not
        finite; they counted as zero.
        """
        return self._elsewhere + sum(
            mechanism.non_finite for mechanism in self.mechanisms
        )

    def _contributions(self, index: int, clients: np.ndarray) -> Messages:
        """Return what the sums add up of clients' messages, and the clients' losses."""
        stream = self.clients.contributions(self.theta.numpy(), clients, index)
        return self.sums.selected(stream, len(clients))

    @in_all_processes
    def _receive_broadcast(self, means: Sequence[np.ndarray]) -> None:
        self.clients.receive_broadcast(means)

    def _make_step(
        self, releases: Mapping[str, torch.Tensor], deviation: Any, index: int
    ) -> None:
        """Move the shared coordinates of the model by the releases of a round.

        Args:
            releases: releases of the server's sums, by name.
            deviation: standard deviation of the noise in the server's own sum.
            index: the round.
        """
        server_sum = self.sums.model_sum
        self.step.set_noise_deviation(
            self._step_state, deviation / server_sum.denominator
        )
        round_releases = RoundReleases(
            mean=self.step.mean(releases[server_sum.spec.name], server_sum.denominator),
            sums=releases,
            index=index,
            rounds=self.planned,
        )
        weights = self.shared.select(self.theta)
        self.step.step(weights, round_releases, self._step_state)
        self.shared.put(self.theta, weights)

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

    def _work(self, cohort: np.ndarray) -> int:
        """Return the number of clients or records of a round, if it is public."""
        work = self.clients.work(cohort)
        if work is None and self.sums.model_sum.spec.private:
            return int(self.plan.denominator)
        return len(cohort) if work is None else work

    # Restart

    def state(self) -> dict[str, Any]:
        """Return everything that a restart needs."""
        model = self._model_state()
        return {
            "theta": model["theta"].clone(),
            "step": self._step_state,
            "clients": self._client_states(),
            "mechanisms": model["mechanisms"],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self._restore_model(state)
        self._step_state = state["step"]
        self._restore_clients(state["clients"])

    @in_all_processes
    def _client_states(self) -> Any:
        return self.clients.state()

    @in_all_processes
    def _restore_clients(self, state: Any) -> None:
        self.clients.restore(state)

    def _model_state(self) -> dict[str, Any]:
        """Return the weights, and the states of the mechanisms."""
        mechanisms = [mechanism.state() for mechanism in self.mechanisms]
        return {"theta": self.theta, "mechanisms": mechanisms}

    def _restore_model(self, state: Mapping[str, Any]) -> None:
        self.theta.copy_(state["theta"])
        mechanisms = self.mechanisms
        for mechanism, saved in zip(mechanisms, state["mechanisms"], strict=True):
            mechanism.restore(saved)

    # Test of the clients' own models

    def personal_test(self) -> dict[str, Any]:
        """Test each client's own model on the examples that training held out.

        Returns:
            The columns of `evaluation.personal_test`; none where nothing was held out.
        """
        if not self.run.clients.held_out_share:
            return {}
        return merge_accuracies(self._client_accuracies(self.theta.numpy()))

    @in_all_processes
    def _client_accuracies(self, theta: np.ndarray) -> list[dict[int, float]]:
        """Return the accuracies of this process's clients.

        The main process gets those of all processes, one mapping for each.
        """
        accuracies = client_accuracies(
            self.run,
            self.clients,
            self.held,
            self.gradients,
            theta,
            self.processes.share(self.run.clients.count),
            threads=self.threads,
        )
        return self.processes.gather(accuracies)
