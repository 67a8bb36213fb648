"""Base class of client updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.config.part import Part
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.training.client_updates.cohort_clients import CohortClients
from dpfedbench.training.clients import Clients, Setup
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    import torch

    from dpfedbench.models.net import Net
    from dpfedbench.run import Run
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class ClientUpdate(Part):
    """Base of the client updates.

    Attributes:
        client_data: data of a client, "tasks" (few-shot) or "records".
        sends: name of the quantity that the server sums.
        sends_too: names of the further messages of a client, each with a sum of its own
            (`Run.further_sums`).
        by_record: whether clients compute each record's gradient separately, so that
            they may sum over their own records.
        couples_records: whether clients may do so where a record's gradient depends on
            other records of its batch.
        any_size: whether clients may hold different numbers of records.
        keeps_state: whether a client keeps something of its own records from one of its
            rounds to the next, besides releases (a personal head, a control variate);
            None: not declared.
        contributes_by_lot: whether the client's own sums take one contribution for a
            lot of records in place of one for each, so that no canary can be put into
            them.
        columns_are_released: whether the columns that the update fills in a private run
            follow from releases alone.

    A class that overrides `clients` declares `keeps_state` anew; a class that overrides
    `columns` declares `columns_are_released` anew: see `proof_assumptions.declared`.
    """

    package: ClassVar[str] = "dpfedbench.training.client_updates"
    client_data: ClassVar[str]
    sends: ClassVar[str]
    sends_too: ClassVar[tuple[str, ...]] = ()
    by_record: ClassVar[bool] = False
    couples_records: ClassVar[bool] = False
    any_size: ClassVar[bool] = False
    keeps_state: ClassVar[bool | None] = None
    contributes_by_lot: ClassVar[bool] = False
    columns_are_released: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse an update whose `contributions` would never be called."""
        super().__init_subclass__(**options)
        if "contributions" in vars(cls) and cls.clients is not ClientUpdate.clients:
            raise BenchError(
                f"{cls.__name__} defines contributions, but the clients of its base"
                " class do not call it: extend ClientUpdate or ModelDifference"
            )

    def net(self, net: Net) -> Net:
        """Return the model with the weights that this update learns in addition."""
        return net

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""
        return None

    def record_subset(
        self, sum_: SumSpec, *, seed: int, client: int, records: int
    ) -> np.ndarray:
        """Return the positions, ascending, of the records of a client's own sum.

        They are all of the client's records, or a part of them.
        """
        return np.arange(records)

    @property
    def mixes_records(self) -> bool:
        """Whether the update of an example depends on others, for any model."""
        return False

    def columns(self, run: Run) -> tuple[str, ...]:
        """Return the columns of history.csv that these clients fill in addition."""
        return ()

    def samplers(self, run: Run, records: Any) -> dict[str, Sampler]:
        """Return the sampler of each sum that a client takes itself, by the sum's name.

        Only updates whose clients take private sums need this. The ledger is compared
        with it.

        Args:
            run: the run.
            records: number of records of a client, where the data determine it; a
                sequence with one number for each client where the numbers differ.
        """
        raise NotImplementedError(
            "only updates whose clients take private sums define this"
        )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        """Yield the message of each client of a cohort, in the cohort's order.

        Several threads and processes call this, each with a part of the round's cohort.
        Each message has to follow from the data of its own client alone.

        Args:
            model: the model that the server sent.
            cohort: clients, each with its examples and its state.
            index: number of the round, from 0.

        Yields:
            A client's message, float32 [d]. Updates with `sends_too` yield one message
            for each sum; the message to the server's own sum is the first.
        """
        raise NotImplementedError

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        """Return the weights that a client uses itself, float32 [d].

        By default they are the server's. `clients.held_out_share` has them tested.

        Args:
            model: the model after the last round.
            client: the client with its training examples and its state, which is not
                changed.
        """
        return model.weights

    @property
    def has_personal_model(self) -> bool:
        """Whether clients use weights of their own (`personal_model`)."""
        return type(self).personal_model is not ClientUpdate.personal_model

    def receive_broadcast(
        self, public_state: dict[str, Any], means: Mapping[str, torch.Tensor]
    ) -> None:
        """Update the state that all clients keep of the server's further releases.

        The loop calls this after each round of a method with further sums.

        Args:
            public_state: tensors and plain values by name; `contributions` reads it as
                `model.public_state`, and a checkpoint has it.
            means: for each further sum, by name, the release divided by the number of
                all clients, float64 [d], zero at coordinates that clients do not share.
        """

    def clients(self, setup: Setup) -> Clients:
        """Return the clients of a run; by default those that call `contributions`.

        Raises:
            BenchError: settings that do not fit the data.
        """
        return CohortClients(self, setup)
