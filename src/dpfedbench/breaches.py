"""Releases of a run that no account covers."""

from dpfedbench.config.breach import Breach
from dpfedbench.config.part import states
from dpfedbench.networks import references_of_network
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
        for earlier in references_of_network(run).values()
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
