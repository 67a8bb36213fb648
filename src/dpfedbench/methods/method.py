"""What every method is: a run's settings, whose fields are the composition, and the loop that they make.

A method's class says which parts it takes by the types of its fields; what does not fit them cannot be written. Its
paper's accounting, if it has one, is `claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench import imports
from dpfedbench.errors import BenchError
from dpfedbench.settings.run import Run
from dpsum.accounting.claims import Claims

if TYPE_CHECKING:
    from dpfedbench.federation.loop import Loop
    from dpfedbench.models.net import Net
    from dpsum.sums import Sum


class Method(Run):
    """A run of a method.

    Class attributes: `name` is what configurations and folders call it, `title` what tables do, `paper` the name of
    the experiments that it belongs to. `version` is raised when results change: then this method's runs are trained
    again, and no other's. `defaults` lie over the values that are said for all methods. `claims` is the accounting of
    the method's paper, by sampler; empty where it claims no epsilon.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    defaults: ClassVar[Mapping[str, Any]] = {}
    claims: ClassVar[Claims] = {}

    pretrains: ClassVar[bool] = False
    """Whether records of all training classes are told apart first, and the body is then adapted to few-shot tasks."""
    sums_query_examples: ClassVar[bool] = False
    """Whether the server's sum is over single query examples, and not over clients."""

    if TYPE_CHECKING:
        client_update: Any  # each method says which

    def loop(self) -> Loop | None:
        """The method's parts, put together; None where nothing is trained."""
        raise NotImplementedError

    @property
    def made_by(self) -> str:
        """What results are of besides settings: the method's version, and the texts of files of one's own.

        These are the file of the model, and those of the method and of its parts that dpfedbench does not come with.
        """
        files = imports.own(self.modules)
        return " ".join(filter(None, (self.version, self.model.text, imports.digest(files) if files else "")))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which its class and its parts are written, and those of what they extend; sorted."""
        classes = {cls for one in (self, *self.sections) for cls in type(one).__mro__}
        return tuple(sorted({cls.__module__ for cls in classes}))

    @property
    def accounts_images(self) -> bool:
        """Whether its account has the level of an image, which asks the partition which clients use which."""
        return self.private and self.holds != "records"

    @property
    def holds(self) -> str:
        """What clients hold: "tasks" (few-shot) or "records"."""
        loop = self.loop()
        return "tasks" if loop is None else loop.client.holds

    @property
    def sums(self) -> tuple[Sum, ...]:
        """All sums of a round."""
        loop = self.loop()
        return () if loop is None else loop.sums

    @property
    def private(self) -> bool:
        return any(sum_.private for sum_ in self.sums)

    @property
    def within_records(self) -> bool:
        """Whether few-shot clients take each example's gradient by itself, from that example alone."""
        loop = self.loop()
        if loop is None or loop.client.holds != "tasks":
            return False
        update: Any = loop.client
        plain = not getattr(update, "learnable_rates", False) and not getattr(update, "multi_step_rounds", 0)
        alone = self.model.record_level and getattr(update, "order", 1) == 1 and plain
        return any(sum_.unit == "record" for sum_ in loop.own) or update.by_record or alone

    def check_processes(self, count: int) -> None:
        """Refuse more processes than a round has clients to divide among them, or than its sum can be taken by.

        Raises:
            BenchError: says how many there can be.
        """
        if count > 1 and any(sum_.noise is not None and sum_.noise.one_by_one for sum_ in self.sums):
            raise BenchError(
                f"machine.processes is {count}, but the sum of {self.folder} takes each client's message by itself, in "
                "one process: set it to 1"
            )
        loop = self.loop()
        most = count if loop is None else loop.participation.at_once(self.clients.count)
        if count > most:
            raise BenchError(
                f"machine.processes is {count}, but a round of {self.folder} has {most} client{'s' * (most != 1)} to "
                f"divide among them: set it to {most}{' or less' * (most != 1)}"
            )

    @property
    def delta(self) -> float | None:
        """At which epsilon is given: the server's sum's, else that of the clients' own; None without privacy."""
        return next((sum_.delta for sum_ in reversed(self.sums) if sum_.private), None)

    @property
    def own_delta(self) -> float | None:
        """At which the epsilon of the clients' own sums is given; None where they take none.

        It is the server's where its sum is of the same unit, since the two are compared.
        """
        own = next((sum_ for sum_ in self.sums if sum_.private and sum_.within_task), None)
        if own is None:
            return None
        return next((sum_.delta for sum_ in self.sums if sum_.budget is not None and sum_.unit == own.unit), own.delta)

    @property
    def references(self) -> dict[str, Run]:
        """Other runs that this one takes a file of, by the file's name in their folder."""
        from dpfedbench.methods import METHODS

        rules = [sum_.clipping for sum_ in self.sums if sum_.clipping is not None]
        asked: list[Mapping[str, Run]] = [
            {rule.reference_file: self._as(METHODS[rule.reference])} for rule in rules if rule.reference
        ]
        found: dict[str, Run] = {}
        for files in (*asked, self.model.references(self), self.initial.references(self)):
            for name, run in files.items():
                if found.setdefault(name, run) != run:
                    raise BenchError(
                        f"this run needs {name} of two runs, {found[name].folder} and {run.folder}, which no account "
                        "puts together: let it rest on one of them"
                    )
        return found

    @staticmethod
    def another(values: Mapping[str, Any]) -> Run:
        """The run that plain values name, `method` among them.

        Raises:
            BenchError: there is none.
        """
        from dpfedbench.methods import read_run

        return read_run(values)

    @property
    def unaccounted(self) -> tuple[str, ...]:
        made_of = {run.folder: run for run in self.model.references(self).values() if not run.private}
        return (
            *super().unaccounted,
            *(f"the network is made of what {folder} found without privacy" for folder in made_of),
            *self.initial.without_account(self),
        )

    def _as(self, method: type[Method]) -> Run:
        """The run of another method that is equal in all that both have."""
        shared = {key: value for key, value in self if key in method.model_fields and key != "method"}
        return method(method=method.name, **shared)

    def net(self, image_shape: tuple[int, ...], classes: int, files: Mapping[str, Path] | None = None) -> Net:
        """The model that is trained.

        Args:
            image_shape: of the data.
            classes: training classes, of which a pre-trained model has an output each.
            files: of other runs, by name (`references`).

        Raises:
            BenchError: a file that the model needs is missing or damaged.
        """
        outputs = classes if self.pretrains else self.task.outputs
        net = self.model.resolved(files or {}).net(input_shape=image_shape, outputs=outputs)
        loop = self.loop()
        return net if loop is None else loop.client.net(net)

    def tested_net(self, image_shape: tuple[int, ...]) -> Net:
        """The model that is adapted to the tasks of a meta-test."""
        net = self.model.net(input_shape=image_shape, outputs=self.task.outputs)
        loop = self.loop()
        return net if loop is None or self.pretrains else loop.client.net(net)

    def adapted(self, net: Net) -> Any:
        """Names of the tensors that adapting to a task moves; None: all."""
        loop = self.loop()
        return None if loop is None or self.pretrains else loop.client.adapted(net)

    @property
    def notices(self) -> tuple[str, ...]:
        if not self.private:
            return ()
        said = list(super().notices)
        server = self.sums[-1]
        if server.private and server.delta is not None and server.delta * self.clients.count >= 1:
            said.insert(1, f"delta {server.delta:g} is not below 1/{self.clients.count}, one over the clients")
        rules = (sum_.clipping for sum_ in self.sums if sum_.clipping is not None)
        said[1:1] = [rule.notice for rule in rules if rule.notice]
        return tuple(said)

    def check(self) -> None:
        loop = self.loop()
        if loop is None:
            return
        self._check_data(loop)
        self._check_records(loop)
        self._check_sums(loop)

    def _check_data(self, loop: Loop) -> None:
        records = loop.client.holds == "records"
        if records != (self.clients.partition == "fragments"):
            raise BenchError(
                f"clients.partition is {self.clients.partition}, which does not go with client_update.kind "
                f"{loop.client.kind}: fragments and clients that hold records belong together"
            )
        as_it_is = records and not self.pretrains
        if as_it_is != (self.task.shots == 0):
            raise BenchError(
                f"task.shots is {self.task.shots}, which does not go with client_update.kind "
                f"{loop.client.kind}: 0 and models that are used as they are belong together"
            )
        if self.pretrains and (self.validation.every or self.evaluation.every):
            raise BenchError(
                "validation.every and evaluation.every are for models that are used as they are: set both to 0 for "
                "a model whose last layer is replaced"
            )

    def _check_records(self, loop: Loop) -> None:
        """What sums over single records need of the model and of participation."""
        by_record = loop.client.by_record or any(sum_.unit == "record" for sum_ in self.sums)
        if by_record and not self.model.record_level:
            raise BenchError(
                f"model {self.model.kind} ties a record's gradient to the others of its batch, but {self.name} takes "
                "records one by one: set model.normalisation to record, or take another model"
            )
        within = [sum_ for sum_ in loop.own if sum_.within_task is not None]
        if within and not loop.participation.once:
            raise BenchError(
                f"participation.kind is {loop.participation.kind}, but within_task accounts for one participation of "
                "a client: use one-pass or balls-and-bins"
            )

    def _check_sums(self, loop: Loop) -> None:
        """What has to hold of all sums together, so that there is one account of those that read the same units."""
        from dpsum.accounting.units import tells_rounds
        from dpsum.sums import together

        together(loop.sums)
        own = [sum_ for sum_ in loop.own if sum_.private and sum_.within_task is not None]
        if any(sum_.within_task != own[0].within_task for sum_ in own):
            raise BenchError(f"{own[0].name} and {own[-1].name} are clients' own sums of two sections: give both one")
        limits = [sum_.budget.epsilon for sum_ in loop.sums if sum_.private and sum_.budget is not None]
        if any(limit is not None for limit in limits) and "ledger.jsonl" in self.references:
            raise BenchError(
                f"budget.epsilon is {limits[0]:g}, but this run rests on a private run on the same records, and what "
                "holds is of both runs together: no budget is kept over both; set budget.epsilon to null and "
                "noise.multiplier to a number"
            )
        plan, server = loop.participation, loop.server
        if own and server.private and server.unit == own[0].unit and not plan.known:
            raise BenchError(tells_rounds(own[0], plan.kind))


def check_noise(noise: Any, budget: Any) -> None:
    """Refuse noise that nothing says.

    Raises:
        BenchError: neither a multiplier nor an epsilon to find it from.
    """
    if noise.multiplier is None and budget.epsilon is None:
        raise BenchError("noise.multiplier and budget.epsilon are both null: give one, the other follows from it")
