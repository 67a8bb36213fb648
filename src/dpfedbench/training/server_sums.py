"""The sums that the server takes in each round of one run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.distributed import Messages, Stream
from dpfedbench.training.mechanisms import Mechanisms
from dpsum.mechanism import Mechanism
from dpsum.participation import Participation


class ServerSums:
    """The sum that moves the model, and further sums of the same cohorts.

    Args:
        setup: the run, its shared coordinates and its clients' data.
        plan: participation plan; draws the cohorts of all of these sums.
        mechanisms: creates the mechanisms.
        clients: the clients of the run.
        in_shapes: whether sums have their own shapes. In an audit every sum has the
            coordinates of the audit's model.

    Attributes:
        model_sum: mechanism of the sum that moves the model.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        plan: Participation,
        mechanisms: Mechanisms,
        clients: Clients,
        in_shapes: bool,
    ) -> None:
        run = setup.run
        self._shared: SharedCoordinates = setup.shared
        self._in_shapes = in_shapes
        spec = dataclasses.replace(
            run.server_sum,
            denominator=plan.denominator * clients.contributions_per_client,
            groups=self._shared.groups(setup.groups_of(run.server_sum.clipping)),
        )
        rule = spec.clipping
        first = setup.first_threshold
        if first is not None and rule is not None and rule.threshold is None:
            spec = spec.with_first_threshold(first)
        # Further sums are divided by the number of all clients: they change a mean over
        # all clients' states, whichever clients take part in the round.
        further_specs = [
            dataclasses.replace(
                further,
                denominator=float(run.clients.count),
                groups=self._shared.groups(setup.groups_of(further.clipping)),
            )
            for further in run.further_sums
        ]
        spec, *further_specs = mechanisms.composition.calibrate(
            [spec, *further_specs], plan
        )
        self.model_sum = mechanisms.create(
            spec,
            participation=plan,
            dimension=self._dimension_of(spec.shape),
            plain_sum=run.server.plain_sum,
            is_calibrated=True,
        )
        self._further = [
            mechanisms.create(
                further,
                participation=plan,
                dimension=self._dimension_of(further.shape),
                is_calibrated=True,
            )
            for further in further_specs
        ]

    @property
    def _mechanisms(self) -> list[Mechanism]:
        return [self.model_sum, *self._further]

    def begin_round(self, index: int) -> list[Any]:
        """Return an empty sum of each mechanism, first that which moves the model."""
        return [mechanism.begin_round(index) for mechanism in self._mechanisms]

    def selected(self, stream: Stream, cohort_size: int) -> Messages:
        """Yield what each sum adds up of the clients' messages, and their losses.

        Raises:
            BenchError: there are more contributions to a sum over clients than clients.
        """
        spec = self.model_sum.spec
        one_each = spec.private and spec.unit == "client"
        rows = 0
        for contributions, losses in stream:
            messages = contributions if self._further else [contributions]
            rows += messages[0].shape[0]
            if one_each and rows > cohort_size:
                raise BenchError(
                    f"clients made more contributions to {spec.name} than the cohort"
                    " has clients, but its account covers one contribution for each"
                    " client: yield one row for each client"
                )
            coordinates = [
                self._coordinates(mechanism.spec.shape, message)
                for mechanism, message in zip(self._mechanisms, messages, strict=True)
            ]
            yield coordinates, losses

    def release(self, totals: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Release the sums of a round, in the order of `begin_round`.

        Returns:
            The releases by the names of their sums, float64, in the shapes of their
            sums and not divided.
        """
        releases = {}
        for mechanism, total in zip(self._mechanisms, totals, strict=True):
            released = mechanism.release(total)
            shape = mechanism.spec.shape
            if shape is not None:
                # In an audit only the first coordinates have a place in the shape.
                released = released[: math.prod(shape)].reshape(shape)
            releases[mechanism.spec.name] = torch.from_numpy(released)
        return releases

    def further_means(self, releases: Mapping[str, torch.Tensor]) -> list[np.ndarray]:
        """Return the further releases over the number of all clients.

        They are float64 [d], or have the shapes of their sums.
        """
        means = []
        for mechanism in self._further:
            spec = mechanism.spec
            mean = releases[spec.name].numpy() / mechanism.denominator
            means.append(self._shared.expanded(mean) if spec.shape is None else mean)
        return means

    def _dimension_of(self, shape: tuple[int, ...] | None) -> int:
        """Return the number of coordinates of a sum, given the shape of its spec."""
        if shape is None or not self._in_shapes:
            return self._shared.count
        return math.prod(shape)

    def _coordinates(
        self, shape: tuple[int, ...] | None, message: torch.Tensor
    ) -> torch.Tensor:
        """Return the coordinates of messages [n, d] that a sum adds up."""
        if shape is not None and self._in_shapes:
            return message
        return self._shared.select(message)
