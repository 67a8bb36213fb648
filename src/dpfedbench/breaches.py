"""Breaches and notices of a run: releases that no account covers, and remarks on its
privacy.
"""

from dpfedbench.config.breach import Breach
from dpfedbench.config.part import states
from dpfedbench.run import Run


def breaches_of(run: Run) -> tuple[Breach, ...]:
    """Return the steps of a run that no account covers; see `Breach`."""
    if not run.trained:
        return ()
    breaches = [
        breach
        for section in run.components
        if states(type(section), "breaches")
        for breach in section.breaches(run)
    ]
    coupling = breach_of_coupled_records(run)
    if coupling is not None:
        breaches.append(coupling)
    return tuple(breaches)


def unaccounted_units(run: Run) -> dict[str, tuple[str, ...]]:
    """Return the reasons of all breaches, by the unit whose guarantee they break."""
    reasons: dict[str, tuple[str, ...]] = {}
    for breach in breaches_of(run):
        reasons[breach.unit] = (*reasons.get(breach.unit, ()), breach.reason)
    return reasons


def unaccounted_releases(run: Run) -> tuple[str, ...]:
    """Return why results computed from private data before training are releases
    without an accounting event.
    """
    reasons = [
        reason
        for section in run.components
        if states(type(section), "unaccounted_releases")
        for reason in section.unaccounted_releases
    ]
    reasons += [
        f"the network is made of what {earlier.folder} found without privacy"
        for earlier in run.network_references.values()
        if not earlier.private
    ]
    reasons += run.initial.without_account(run.dataset, run.references)
    return tuple(dict.fromkeys(reasons))


def breach_of_coupled_records(run: Run) -> Breach | None:
    """Return the breach of a model that mixes the records of a batch, if it does."""
    sums_records = any(sum_.unit == "record" for sum_ in run.all_sums)
    takes_records = run.client_update.by_record or sums_records
    if run.model.record_level or not takes_records:
        return None
    return Breach(
        unit="record",
        refusal=(
            f"model {run.model.kind} ties a record's gradient to the others of its"
            f" batch, but {run.name} takes records one by one: set"
            f" {run.model.by_record}, or take another model"
        ),
        reason=(
            "normalisation over a batch puts each record into the gradients of the"
            " others, where clipping does not bound it"
        ),
    )


def notices_of(run: Run, *, has_owners: bool = False) -> tuple[str, ...]:
    """Return the notices about a run's privacy, printed and written beside the result.

    A run that claims no privacy has none.

    Args:
        run: the run.
        has_owners: whether its data set knows the owners of its examples.
    """
    if not run.private:
        return ()
    notices = ["simulated privacy: the noise seed is public"]
    server = run.server_sum
    notices += [
        sum_.clipping.notice
        for sum_ in run.all_sums
        if sum_.clipping is not None and sum_.clipping.notice
    ]
    if server.private and (server.delta or 0.0) * run.clients.count >= 1:
        notices.append(
            f"delta {server.delta:g} is not below 1/{run.clients.count}, one over the"
            " clients"
        )
    for section in run.components:
        if states(type(section), "notices"):
            notices += section.notices(run)
    notices += uncovered_notices(run)
    if has_owners:
        notices += ignored_owner_notices(run)
    if not run.task.shots:
        kind = "public validation" if run.validation.public else "validation"
        notices.append(
            f"{run.validation.tasks} records of the test part are a {kind} split;"
            " accuracy is on the rest"
        )
    return tuple(notices)


def ignored_owner_notices(run: Run) -> tuple[str, ...]:
    """Return the notice about a run that protects invented clients of data that have
    owners; none if its clients are the owners.
    """
    protects_clients = any(spec.unit == "client" for spec in run.private_sums)
    if not protects_clients or run.client_origin != "synthetic":
        return ()
    return (
        f"the examples of {run.dataset} have owners, but clients.partition"
        f" {run.clients.partition} deals them out to invented clients, whom its epsilon"
        " protects in place of the owners: take natural or natural-tasks",
    )


def uncovered_notices(run: Run) -> tuple[str, ...]:
    """Return the notices about published values that no account of a private run covers.

    They stand in privacy.json too, beside the account.
    """
    notices = []
    if run.private and run.clients.held_out_share:
        notices.append(
            "personal accuracies exist only in the simulation: they are measured"
            " on clients' own examples, no server sees them, and no account"
            " covers them"
        )
    if run.private and run.validation.every and not run.validation.public:
        notices.append(
            "validation.public is false: validation accuracies, and the checkpoints"
            " that they choose, read private validation data without noise, and no"
            " account covers them"
        )
    return tuple(notices)
