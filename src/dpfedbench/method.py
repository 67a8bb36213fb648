"""Base class of methods: the settings of a run, with its parts as fields, and its sums.

The types of a method's fields say which parts it accepts. A configuration with other
parts is refused. `claims` is the accounting of the method's paper, if the paper has
one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.manifests import mend
from dpfedbench.parts.clipping.reference import ReferenceRule
from dpfedbench.parts.compatibility import check_part
from dpfedbench.parts.proof_assumptions import check_plan
from dpfedbench.settings.breach import Breach
from dpfedbench.settings.messages import nearest
from dpfedbench.settings.plugin_sources import digest_classes
from dpfedbench.settings.run import Run, read_yaml
from dpsum.accounting.claims import Claims, counting_clients
from dpsum.accounting.units import tells_rounds
from dpsum.sums import composition_groups

if TYPE_CHECKING:
    from dpfedbench.models.net import Net
    from dpfedbench.parts.client_updates.client_update import ClientUpdate
    from dpfedbench.parts.server.server_step import ServerStep
    from dpsum.participation import Participation


class Method(Run):
    """Run of one method.

    Class attributes: `name` identifies the method in configurations and folders,
    `title` in tables. `paper` is the name of its paper's experiments. Raise `version`
    when results change: then the runs of this method, and of no other, are trained
    again. `defaults` override the values that the configuration gives to all methods.
    `trained` is false for a method that trains nothing; such a method has none of the
    parts below.

    A method that trains declares three parts by the types of its fields:
    `participation` (which clients take part in which round), `client_update` (what each
    client computes and sends) and `server` (the step that the server makes along the
    sum). `sums` lists all its sums, those of the server and those of each client.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    defaults: ClassVar[dict[str, Any]] = {}
    released: ClassVar[dict[str, Any]] = {}
    """Settings of the authors' released code that differ from the paper's. Classes that
    extend this one do not inherit them.
    """
    trained: ClassVar[bool] = True
    shared: ClassVar[str | Sequence[str]] = "all"
    """Tensors or modules of the network that clients share with the server, named as in
    `Net.mask`. With "body", clients keep the last layer. The server's sums, their
    clipping and noise, the ledger and the server's step cover these coordinates alone.
    """
    known: ClassVar[dict[str, type[Method]]] = {}
    """All methods by name; `dpfedbench.papers` fills it."""

    if TYPE_CHECKING:  # each method declares its own types
        participation: Participation
        client_update: Any
        server: ServerStep

    @property
    def client(self) -> ClientUpdate:
        """The client update: what each client computes and sends."""
        update: ClientUpdate = self.client_update
        return update

    @property
    def made_by(self) -> str:
        """Identity of the code that results depend on, besides the settings.

        It consists of the method's version, a hash of the network's file, and hashes of
        the files that define the classes of the method and its parts, where they are
        not files of dpfedbench.
        """
        plugin_digest = digest_classes(
            type(component) for component in (self, *self.components)
        )
        return " ".join(filter(None, (self.version, self.model.text, plugin_digest)))

    @property
    def features_folder(self) -> str | None:
        """Folder of the model's input features below results/features, or None.

        One job computes these features for all runs that need the same ones.
        """
        if (of := self.model.made_once(self)) is None:
            return None
        canonical = json.dumps(of, sort_keys=True, separators=(",", ":"))
        return f"{self.dataset}/{hashlib.sha256(canonical.encode()).hexdigest()[:10]}"

    @property
    def accounts_images(self) -> bool:
        """Whether the account covers the level of an image.

        That level needs the partition, which says which clients use which image.
        """
        return self.private and self.client_data != "records"

    @property
    def client_data(self) -> str:
        return self.client.client_data if self.trained else "tasks"

    @property
    def private(self) -> bool:
        return any(sum_.private for sum_ in self.sums())

    @property
    def counted_claims(self) -> Claims:
        """Accounting of the method's paper, for the paper's number of clients."""
        for sum_ in self.sums():
            clients = getattr(sum_.budget, "counted_clients", None)
            if clients is not None:
                return counting_clients(self.claims, clients)
        return self.claims

    @property
    def within_records(self) -> bool:
        """Whether few-shot clients compute each example's gradient from it alone."""
        return self.trained and self.client.within_records(self)

    def check_processes(self, count: int) -> None:
        """Refuse more processes than can share a round.

        A round cannot have more processes than clients. A sum whose noise takes each
        client's message by itself runs in one process.

        Raises:
            BenchError: too many processes; the message gives the largest possible
                number.
        """
        if count > 1 and any(
            sum_.noise is not None and sum_.noise.one_by_one for sum_ in self.sums()
        ):
            raise BenchError(
                f"machine.processes is {count}, but the sum of {self.folder} takes each"
                " client's message by itself, in one process: set it to 1"
            )
        most = (
            self.participation.clients_per_round(self.clients.count)
            if self.trained
            else count
        )
        if count > most:
            raise BenchError(
                f"machine.processes is {count}, but a round of {self.folder} has {most}"
                f" client{'s' * (most != 1)} to divide among them: set it to"
                f" {most}{' or less' * (most != 1)}"
            )

    @property
    def delta(self) -> float | None:
        """δ at which ε is reported: that of the server's sum, else that of the clients'
        own sums; None without privacy.
        """
        return next(
            (sum_.delta for sum_ in reversed(self.sums()) if sum_.private), None
        )

    @property
    def own_delta(self) -> float | None:
        """δ at which the ε of the clients' own sums is reported; None without them.

        It is the server's δ where the server's sum protects the same unit, because the
        two values of ε are compared.
        """
        client_sum = next(
            (sum_ for sum_ in self.sums() if sum_.private and sum_.within_task), None
        )
        if client_sum is None:
            return None
        return next(
            (
                sum_.delta
                for sum_ in self.sums()
                if sum_.budget is not None and sum_.unit == client_sum.unit
            ),
            client_sum.delta,
        )

    @property
    def references(self) -> dict[str, Run]:
        sum_references: list[Mapping[str, Run]] = [
            {rule.reference_file: self._as(self.known[rule.reference])}
            for rule in (sum_.clipping for sum_ in self.sums())
            if isinstance(rule, ReferenceRule)
        ]
        runs: dict[str, Run] = {}
        for files in (
            *sum_references,
            self.model.references(self),
            self.initial.references(self),
        ):
            for name, run in files.items():
                if runs.setdefault(name, run) != run:
                    raise BenchError(
                        f"this run needs {name} of two runs, {runs[name].folder} and"
                        f" {run.folder}, but no account composes both: use only one of"
                        " them"
                    )
        return runs

    @staticmethod
    def another(values: Mapping[str, Any]) -> Run:
        return read_run(values)

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Reasons why a result computed from private data before training is a release
        without an accounting event.
        """
        made_of = {
            run.folder: run
            for run in self.model.references(self).values()
            if not run.private
        }
        return (
            *(reason for section in self.sections for reason in section.unaccounted),
            *(
                f"the network is made of what {folder} found without privacy"
                for folder in made_of
            ),
            *self.initial.without_account(self),
        )

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """Releases of this run that no account covers; see `Breach`."""
        if not self.trained:
            return ()
        of_sections = [
            breach
            for section in self.sections
            for breach in section.breaches(self)  # type: ignore[arg-type]
        ]
        return (*of_sections, *self._coupled_records())

    @property
    def unaccounted_units(self) -> dict[str, tuple[str, ...]]:
        """Reasons of all breaches, by the unit whose guarantee they break."""
        units = dict.fromkeys(breach.unit for breach in self.breaches)
        return {
            unit: tuple(
                breach.reason for breach in self.breaches if breach.unit == unit
            )
            for unit in units
        }

    def _takes_records(self) -> bool:
        """Return whether a sum is over single records."""
        by_unit = any(sum_.unit == "record" for sum_ in self.sums())
        return self.client.by_record or by_unit

    def _coupled_records(self) -> tuple[Breach, ...]:
        """Return the breach of a model that mixes the records of a batch."""
        if self.model.record_level or not self._takes_records():
            return ()
        breach = Breach(
            unit="record",
            refusal=(
                f"model {self.model.kind} ties a record's gradient to the others of its"
                f" batch, but {self.name} takes records one by one: set"
                f" {self.model.by_record}, or take another model"
            ),
            reason=(
                "normalisation over a batch puts each record into the gradients of the"
                " others, where clipping does not bound it"
            ),
        )
        return (breach,)

    def _as(self, method: type[Method]) -> Run:
        """Return the run of another method with the same values for shared settings."""
        shared = {
            key: value
            for key, value in self
            if key in method.model_fields and key != "method"
        }
        return method(method=method.name, **shared)

    def net(
        self,
        image_shape: tuple[int, ...],
        classes: int,
        files: Mapping[str, Path] | None = None,
    ) -> Net:
        """Return the model that is trained.

        Args:
            image_shape: shape of one input of the data set.
            classes: number of training classes; a pre-trained model has one output for
                each.
            files: files of other runs, by name (`references`).

        Raises:
            BenchError: a file that the model needs is missing or damaged.
        """
        outputs = classes if self.pretrains else self.task.outputs
        net = self.model.resolved(files or {}).net(
            input_shape=image_shape, outputs=outputs
        )
        return self.client.net(net) if self.trained else net

    def shared_mask(self, net: Net) -> np.ndarray | None:
        """Return the coordinates that clients share, bool [d]; None: all.

        Override this in a method whose shared coordinates are not whole tensors.
        """
        names = (self.shared,) if isinstance(self.shared, str) else self.shared
        if tuple(names) == ("all",):
            return None
        return net.mask(*names)

    @property
    def shares_all(self) -> bool:
        """Whether clients share all coordinates of the model with the server."""
        by_mask = type(self).shared_mask is not Method.shared_mask
        return not by_mask and self.shared in ("all", ("all",), ["all"])

    def tested_net(self, image_shape: tuple[int, ...]) -> Net:
        """Return the model that the meta-test adapts to its tasks."""
        net = self.model.net(input_shape=image_shape, outputs=self.task.outputs)
        return self.client.net(net) if self.trained and not self.pretrains else net

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""
        of_update = None
        if self.trained and not self.pretrains:
            of_update = self.client.adapted(net)
        if of_update is None:
            return self.model.adapted(net.tensor_names)
        return of_update

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices about this run's privacy, printed and written beside the result."""
        if not self.private:
            return ()
        notices = ["simulated privacy: the noise seed is public"]
        server = self.sums()[-1]
        notices += [
            sum_.clipping.notice
            for sum_ in self.sums()
            if sum_.clipping is not None and sum_.clipping.notice
        ]
        if (
            server.private
            and server.delta is not None
            and server.delta * self.clients.count >= 1
        ):
            notices.append(
                f"delta {server.delta:g} is not below 1/{self.clients.count}, one over"
                " the clients"
            )
        for section in self.sections:
            notices += section.notices(self)  # type: ignore[arg-type]
        if self.clients.held_out_share:
            notices.append(
                "personal accuracies are the simulation's: they are read off clients'"
                " own examples, no server sees them, and no account covers them"
            )
        if not self.task.shots:
            held_out = self.validation.tasks
            notices.append(
                f"{held_out} records of the test part are a public validation split;"
                " accuracy is on the rest"
            )
        return tuple(notices)

    @property
    def reminders(self) -> tuple[str, ...]:
        """Easily overlooked consequences of the settings.

        They are printed when training starts and do not appear in results.
        """
        if not self.trained or self.client_data != "tasks":
            return ()
        at_client = self.clients.support_per_class
        at_test = self.task.shots
        if self.task.text is not None or at_client == at_test:
            return ()
        return (
            f"clients train with {at_client} support examples of a class"
            f" (clients.support_per_class); task.shots, {at_test}, is of the meta-test"
            " alone",
        )

    def check(self) -> None:
        if self.trained:
            for component in self.components:
                check_part(self, component)
            self._check_data()
            self._check_records()
            self._check_sums()
            check_plan(
                self,
                client=self.client,
                participation=self.participation,
                sums=self.sums(),
                own=self.client_sums,
            )
        self._check_reading()

    def _check_reading(self) -> None:
        """Refuse a breach, unless `reading` is as-released."""
        breaches = self.breaches
        if self.reading == "as-published":
            if breaches:
                raise BenchError(breaches[0].refusal)
            return
        rules = [sum_.clipping for sum_ in self.sums() if sum_.private]
        if not breaches and all(rule is None or rule.private for rule in rules):
            raise BenchError(
                f"reading is as-released, but this run of {self.name} does nothing that"
                " its account does not cover: leave reading out"
            )
        for sum_ in self.sums():
            budget = sum_.budget
            if budget is not None and budget.epsilon is not None and budget.stop:
                raise BenchError(
                    f"reading is as-released, of which no finite ε is proven, but"
                    f" budget.epsilon is {budget.epsilon:g} and stops the training at"
                    " it: set budget.epsilon to null, or budget.stop to false"
                )

    def _check_data(self) -> None:
        held = self.client.client_data
        clients = self.clients
        records = held == "records"
        if held != clients.holds:
            raise BenchError(
                f"clients.partition is {clients.partition}, which does not go with"
                f" client_update.kind {self.client.kind}: take"
                f" {' or '.join(clients.kinds(held))}, whose clients hold {held}"
            )
        if not clients.equal_sizes and not self.client.any_size:
            raise BenchError(
                f"clients.partition is {clients.partition}, whose clients hold"
                " different numbers of records, but those of client_update.kind"
                f" {self.client.kind} hold as many each: take another partition"
            )
        for sum_ in () if clients.equal_sizes else self.client_sums:
            if sum_.clipping is not None and sum_.clipping.moves:
                raise BenchError(
                    f"clipping.kind is {sum_.clipping.kind}, which compares a lot's"
                    " release with one expected lot, but with clients.partition"
                    f" {clients.partition} each client has its own: take constant"
                )
        if clients.held_out_share:
            self._check_personal_test(records)
        as_it_is = records and not self.pretrains
        if as_it_is != (self.task.shots == 0):
            raise BenchError(
                f"task.shots is {self.task.shots}, which does not go with"
                f" client_update.kind {self.client.kind}: 0 shots if, and only if,"
                " models are tested unadapted"
            )
        if self.pretrains and (self.validation.every or self.evaluation.every):
            raise BenchError(
                "validation.every and evaluation.every need a model that is tested"
                " without adaptation: set both to 0 for a model with a new last layer"
                " in the test"
            )

    def _check_personal_test(self, records: bool) -> None:
        """Refuse a test of clients' own models where no examples can be held out."""
        clients = self.clients
        where = f"clients.held_out_share is {clients.held_out_share:g}, but"
        without = self.pretrains or self.task.text is not None
        if without or (records and self.client_sums):
            raise BenchError(
                f"{where} the clients of {self.name} with client_update.kind"
                f" {self.client_update.kind} have no test of their own: that is for"
                " few-shot clients of images, and for clients that hold records and"
                " send messages to the server's sums; set it to 0"
            )
        if records:
            return
        if not clients.disjoint:
            raise BenchError(
                f"{where} with clients.partition {clients.partition} an example that"
                " one client leaves out may be in another one's training: take"
                f" {' or '.join(clients.kinds('tasks', disjoint=True))}"
            )
        used = clients.support_per_class + clients.query_per_class
        if used + clients.left_out_per_class > clients.examples_per_class:
            raise BenchError(
                f"{where} of {clients.examples_per_class} examples of a class"
                f" (clients.examples_per_class) training uses {used}: raise"
                " clients.examples_per_class, or lower held_out_share"
            )

    def _check_records(self) -> None:
        """Refuse a model or participation that does not fit sums over records."""
        coupled = self._coupled_records()
        if coupled and not self.client.couples_records:
            raise BenchError(coupled[0].refusal)
        within = [sum_ for sum_ in self.client_sums if sum_.within_task is not None]
        if within and not self.participation.once:
            raise BenchError(
                f"participation.kind is {self.participation.kind}, but within_task"
                " accounts for one participation of a client: use one-pass or"
                " balls-and-bins"
            )

    def _check_sums(self) -> None:
        """Refuse sums over the same units that no account covers together."""
        composition_groups(self.sums())
        if self.sums()[-1].taken_by != "server":
            raise BenchError(
                f"the last of the sums of {self.name} is not taken by the server, but"
                " the server moves the model by the last one: list the clients' sums"
                " first"
            )
        self._check_groups()
        if self.client_sums and not self.shares_all:
            raise BenchError(
                f"the clients of {self.name} share {self.shared} alone, but"
                f" {self.client_sums[0].name} is a sum that each client takes over all"
                ' coordinates: set shared = "all" on the method, or take sums of the'
                " server alone"
            )
        sums = self.further_sums
        server = self.server_sum
        if tuple(sum_.name for sum_ in sums) != self.client.sends_too:
            raise BenchError(
                f"the clients of client_update.kind {self.client.kind} also send"
                f" {', '.join(self.client.sends_too)}, but {self.name} takes further"
                f" sums of {', '.join(sum_.name for sum_ in sums) or 'nothing'}: take a"
                " method of these clients"
            )
        for sum_ in sums if server.private else ():
            if not sum_.private or (sum_.unit, sum_.budget) != (
                server.unit,
                server.budget,
            ):
                raise BenchError(
                    f"{sum_.name} is of the same contributions as {server.name}, which"
                    f" is private: give it noise, the unit {server.unit} and the same"
                    " budget"
                )
        client_sums = [
            sum_
            for sum_ in self.client_sums
            if sum_.private and sum_.within_task is not None
        ]
        if any(sum_.within_task != client_sums[0].within_task for sum_ in client_sums):
            raise BenchError(
                f"{client_sums[0].name} and {client_sums[-1].name} are clients' own sums of two"
                " sections: give both one"
            )
        limits = [
            sum_.budget.epsilon
            for sum_ in self.sums()
            if sum_.private and sum_.budget is not None
        ]
        if (
            any(limit is not None for limit in limits)
            and "ledger.jsonl" in self.references
        ):
            raise BenchError(
                f"budget.epsilon is {limits[0]:g}, but this run uses a private run on"
                " the same records, so its ε is that of both runs: a budget cannot"
                " cover both; set budget.epsilon to null and noise.multiplier to a"
                " number"
            )
        unlimited = [
            sum_
            for sum_ in self.sums()
            if sum_.budget is not None and sum_.budget.epsilon is None
        ]
        if any(sum_.private and sum_.noise.multiplier is None for sum_ in unlimited):
            raise BenchError(
                "noise.multiplier and budget.epsilon are both null: give one, the other"
                " follows from it"
            )
        plan = self.participation
        if (
            client_sums
            and server.private
            and server.unit == client_sums[0].unit
            and not plan.known
        ):
            raise BenchError(tells_rounds(client_sums[0], plan.kind))

    def _check_groups(self) -> None:
        """Refuse groups of coordinates that no analysis or no code supports."""
        names = [sum_.name for sum_ in self.client_sums]
        for sum_ in self.sums():
            if not sum_.private or sum_.clipping.groups == "all":
                continue
            where = f"clipping.groups is {sum_.clipping.groups}, but"
            if sum_.noise.mechanism != "gaussian":
                raise BenchError(
                    f"{where} {sum_.noise.mechanism} noise has no analysis by groups:"
                    " set clipping.groups to all, or take another noise"
                )
            if sum_.name in names and sum_.within_task is None:
                raise BenchError(
                    f"{where} {sum_.name} is a sum of each client's own, which is"
                    " clipped as a whole: set clipping.groups to all"
                )


def read_run(values: Mapping[str, Any]) -> Method:
    """Return a run from plain values, which include `method`.

    Raises:
        BenchError: an unknown method, or values that do not fit it.
    """
    name = values.get("method")
    if not isinstance(name, str) or name not in Method.known:
        raise BenchError(
            f"method is {name!r}: there is no such method, the nearest is"
            f" {nearest(str(name), Method.known)!r}; a method of your own is in a"
            " module that plugins lists"
        )
    return Method.known[name].read(values)


def read_run_file(path: Path | str) -> Method:
    """Return a run from the config.yaml in its folder.

    Raises:
        BenchError: the file is missing or damaged, holds a bad value, or belongs to
            another
            run: its values determine the name of the folder.
    """
    run = read_run(read_yaml(path))
    folder = Path(path).resolve().parent
    if folder.parts[-5:] != Path(run.folder).parts:
        raise BenchError(
            f"{path} is in the wrong folder: its values belong to {run.folder}:"
            f" {mend(Path(path), 'configure')}"
        )
    return run
