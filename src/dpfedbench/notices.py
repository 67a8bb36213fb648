"""Notices about the privacy of a run."""

from dpfedbench.config.part import states
from dpfedbench.run import Run


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
