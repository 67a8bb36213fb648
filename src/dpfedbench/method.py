"""Base class of methods: the parts, the sums and the claims of a paper.

The types of a method's fields say which parts it accepts. A configuration with other
parts is refused. `claims` is the accounting of the method's paper, if the paper has
one. An instance of a method is a run (`dpfedbench.run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dpfedbench.parts import compatibility
from dpfedbench.run import Run
from dpfedbench.training.proof_assumptions import check_plan
from dpsum.accounting.claims import Claims
from dpsum.sums import SumSpec


class Method(Run):
    """Algorithm of a paper; an instance is a run of it.

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

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    family: ClassVar[str] = ""
    """Name of a base of several methods: sections of a configuration may be for all of
    them. The defaults of such a base belong to no paper (`identity`).
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
    neutral: ClassVar[Mapping[str, Any]] = {}
    """Values that the keys of runs leave out, where `identity` does not find them. Never
    change one: the keys of all runs that have it would change.
    """
    trained: ClassVar[bool] = True
    shared: ClassVar[str | Sequence[str]] = "all"
    """Tensors or modules of the network that clients share with the server, named as in
    `Net.mask`. With "body", clients keep the last layer. The server's sums, their
    clipping and noise, the ledger and the server's step cover these coordinates alone.
    """
    claims: ClassVar[Claims] = {}
    """Accounting of the method's paper, by sampler; empty if it claims no epsilon."""
    pretrains: ClassVar[bool] = False
    """Whether the model is first trained to classify records of all training classes,
    and its body then adapted to few-shot tasks.
    """

    @classmethod
    def groups(cls) -> tuple[str, ...]:
        """Return the names under which sections of a configuration are for this method:
        "all", its families, and its own name; general ones first.
        """
        families = [vars(base).get("family", "") for base in reversed(cls.__mro__)]
        return ("all", *filter(None, families), cls.name)

    def check(self) -> None:
        """Check the rules of the run as a whole; methods extend it.

        Raises:
            BenchError: a rule is violated.
        """
        if self.trained:
            compatibility.check_parts(self)
        if self.trained and self.private:
            check_plan(
                self.private_sums,
                update=self.client_update,
                participation=self.participation,
                columns=self.client_update.columns(self),
                public_losses=self.validation.public,
            )
        compatibility.check_reading(self)

    def sums(self) -> list[SumSpec]:
        """Return all sums of a round: each client's, in their order, then the server's.

        Privacy, notices, budget and audit of the run follow from them. The server moves
        the model by its last sum. Its sums before the last are those of further
        messages, in the order in which clients send them.
        """
        return []
