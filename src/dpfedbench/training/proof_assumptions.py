"""Assumptions of the privacy proofs about the parts of a run.

Each assumption is checked from a property of the parts, so that the check covers parts
of plugins too. The table in docs/privacy.md ("Which property enforces which
assumption") lists these assumptions and those that other files check. One test compares
the table with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.results_format import NORMS
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.client_update import ClientUpdate
    from dpfedbench.training.clients import Clients
    from dpsum.participation import Participation


def check_plan(
    private_sums: Sequence[SumSpec],
    *,
    update: ClientUpdate,
    participation: Participation,
    columns: Sequence[str],
    public_losses: bool,
) -> None:
    """Refuse parts of a private run that do not satisfy the assumptions of its proofs.

    Args:
        private_sums: sums that are clipped and noised.
        update: what clients compute.
        participation: which clients take part in which round.
        columns: columns of history.csv that the clients fill.
        public_losses: whether losses of the validation are on public records.

    Raises:
        BenchError: names the assumption and the property.
    """
    _check_client_state(update, participation, private_sums)
    _check_columns(update, columns)
    for sum_ in private_sums:
        if sum_.private_noise.follows_loss and not public_losses:
            raise BenchError(
                f"the noise of {sum_.name} follows a validation loss, but"
                " validation.public is false, and no account covers a loss on"
                " private records: take public records, or noise.kind fixed"
            )
        alone = sum_.unit == "client" and sum_.within_task is not None
        if alone and sum_.adjacency != "replace-one":
            raise BenchError(
                f"{sum_.name} is a sum over each client's own update, which every"
                f" client sends, but its adjacency is {sum_.adjacency}: set adjacency"
                " to replace-one (parts.budget.OwnUpdate does)"
            )


def check_clients(
    clients: Clients,
    sums: Sequence[SumSpec],
    *,
    update: ClientUpdate,
    participation: Participation,
    taken: Iterable[str],
) -> None:
    """Refuse clients, once they are created, that violate an assumption of the proofs.

    Args:
        clients: the clients that the client update created.
        sums: all sums of a round, the server's last.
        update: the client update.
        participation: which clients take part in which round.
        taken: names of the sums that have a mechanism.

    Raises:
        BenchError: names the assumption and the property.
    """
    server = sums[-1]
    over_clients = server.private and server.unit == "client"
    if over_clients and clients.contributions_per_client != 1:
        raise BenchError(
            f"each client makes {clients.contributions_per_client} contributions to"
            f" {server.name}, but its account covers one contribution for each client"
            " and round: send one (Clients.contributions_per_client)"
        )
    keeps = clients.keeps_state
    if over_clients and keeps and not participation.allows_client_state:
        raise BenchError(_state_message(update, participation, "save a state"))
    of_clients = {
        sum_.name for sum_ in sums if sum_.taken_by == "client" and sum_.private
    }
    missing = of_clients - set(taken)
    if missing:
        raise BenchError(
            f"client_update.kind {update.kind} does not take {min(missing)}, the sum"
            " that protects what its clients send: take it by setup.create_mechanism, or take"
            " another client update"
        )


def check_row(row: dict[str, Any], kind: str) -> None:
    """Refuse raw losses and norms in a row that the clients of a private run fill.

    Raises:
        BenchError: names the column.
    """
    for name in ("loss", *NORMS):
        value = row.get(name)
        if value is not None and value == value:
            raise BenchError(
                f"the clients of client_update.kind {kind} fill the column {name} of"
                " history.csv, which depends on private records and is not a"
                " release: leave it out of a private run"
            )


def declared(part: Any, name: str, made_by: str) -> Any:
    """Return a class attribute that describes a method; None if it is outdated.

    A class that overrides the method has to declare the attribute anew: the base's
    declaration describes the base's method.

    Args:
        part: the part.
        name: the attribute.
        made_by: the method that it describes.
    """
    bases = type(part).__mro__
    declares = next(i for i, base in enumerate(bases) if name in vars(base))
    makes = next(i for i, base in enumerate(bases) if made_by in vars(base))
    return getattr(part, name) if declares <= makes else None


def _check_client_state(
    update: ClientUpdate,
    participation: Participation,
    private_sums: Sequence[SumSpec],
) -> None:
    keeps = declared(update, "keeps_state", "clients")
    if keeps is False:
        return
    verb = "keep state" if keeps else "may keep state"
    if any(sum_.unit == "record" for sum_ in private_sums):
        raise BenchError(
            f"the clients of client_update.kind {update.kind} {verb}, but the account"
            " of a record assumes that each record's contribution depends on that"
            " record and on releases alone: set keeps_state = False on the class if"
            " this is true, or protect clients"
        )
    over_clients = any(sum_.within_task is None for sum_ in private_sums)
    if over_clients and not participation.allows_client_state:
        raise BenchError(_state_message(update, participation, verb))


def _state_message(
    update: ClientUpdate, participation: Participation, what: str
) -> str:
    return (
        f"the clients of client_update.kind {update.kind} {what}, but"
        f" participation.kind is {participation.kind}, whose account needs contributions"
        " that do not depend on earlier rounds: take poisson, balls-and-bins or a"
        " participation with known rounds, or set keeps_state = False on the class"
        " if its clients keep nothing"
    )


def _check_columns(update: ClientUpdate, columns: Sequence[str]) -> None:
    if columns and not declared(update, "columns_are_released", "columns"):
        raise BenchError(
            f"client_update.kind {update.kind} fills {', '.join(columns)} of"
            " history.csv in a run that claims privacy: set columns_are_released ="
            " True on the class if all these columns follow from releases, or fill"
            " none"
        )
