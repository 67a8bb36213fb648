"""The account of a finished run: what its settings and its partition say beside the
ledger.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.partition import Partition
from dpfedbench.errors import BenchError
from dpfedbench.federation.agreement import check_agrees
from dpfedbench.files import read_group, text_of, write_json
from dpfedbench.method import Method
from dpsum.accounting.account import Account, account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from dpsum.ledger import Release, read_ledger


def finished_ledger(folder: Path) -> tuple[list[Release], int]:
    """The releases of a finished run, compared with the training.json beside its
    ledger, and the rounds it tells of.

    Raises:
        BenchError: as `dpsum.ledger.read_ledger`; or training.json is missing, damaged,
            or does not tell of the ledger.
    """
    training = read_group(folder / "training.json")
    chain = training.get("ledger")
    rounds = training.get("rounds_run")
    if not isinstance(chain, dict) or type(rounds) is not int:
        missing = (
            "its ledger's length and end"
            if not isinstance(chain, dict)
            else "how many rounds were run"
        )
        raise BenchError(
            f"{folder / 'training.json'} does not say {missing}: train the run again"
        )
    path = folder / "ledger.jsonl"
    text_of(path)  # what keeps it from being read is said as of any of a run's files
    return read_ledger(path, chain), rounds


def ledger_of(run: Method, run_dir: Path | str) -> list[Release]:
    """The releases of a finished run, all of them and as its configuration has them.

    Raises:
        BenchError: the ledger is missing or damaged, has not the lines that
            training.json tells of, or says another mechanism than the configuration.
    """
    releases, rounds = finished_ledger(Path(run_dir))
    path = Path(run_dir, "ledger.jsonl")
    if run.private and not releases:
        raise BenchError(
            f"{path} is empty, but {run.method} is private: train the run again"
        )
    if releases and not run.private:
        raise BenchError(f"{path} has releases, but {run.method} claims no privacy")
    try:
        check_agrees(run, releases, rounds)
    except BenchError as error:
        raise BenchError(f"{path}: {error}") from error
    return releases


def image_use(run: Method, clients_dir: Path | str) -> ImageUse:
    """Return which clients of a run use which image, and in which round where its plan
    fixes that.

    Raises:
        BenchError: the partition is missing, damaged or not this run's.
    """
    plan = run.participation.plan(clients=run.clients.count, seed=run.stream_seed)
    rounds = None
    if run.participation.known:
        rounds = np.full(run.clients.count, -1)
        for index in range(plan.rounds):
            rounds[plan.sample_cohort(index)] = index
    used = run.clients.support_per_class + run.clients.query_per_class
    return used_images(Partition.load(clients_dir), used_per_class=used, rounds=rounds)


def used_images(
    partition: Partition, *, used_per_class: int, rounds: np.ndarray | None
) -> ImageUse:
    """Return which clients of a partition use which image.

    Args:
        partition: of the run.
        used_per_class: support and query images per class together; the first of those
            that a client holds.
        rounds: of each client, as `ImageUse` has them.

    Raises:
        BenchError: the clients hold fewer.
    """
    if used_per_class > partition.examples_per_class:
        raise BenchError(
            f"the clients hold {partition.examples_per_class} images a class, fewer"
            f" than the {used_per_class} of support and query: delete the clients'"
            " folder and run the workflow again"
        )
    if rounds is not None and len(rounds) != len(partition):
        raise BenchError(
            f"the partition has {len(partition)} clients, the run {len(rounds)}: delete"
            " the clients' folder and run the workflow again"
        )
    examples = partition.examples[:, :, :used_per_class].astype(np.int64)
    per_class = int(examples.max(initial=0)) + 1
    images = partition.classes.astype(np.int64)[:, :, None] * per_class + examples
    return ImageUse(images=images.reshape(len(partition), -1), rounds=rounds)


def account_of(
    run: Method,
    releases: list[Release],
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
    delta: float | None = None,
    before: Sequence[Release] = (),
) -> Account:
    """Compute the account of a run from its ledger, with all profiles.

    Args:
        run: a finished run.
        releases: its ledger.
        clients_dir: its partition, for the image level; None leaves that out, with the
            reason.
        search: the declared search for hyper-parameters, if there was one.
        delta: at which epsilon is given, for all units; None: the run's own.
        before: the ledger of the run that this one rests on, where there is one.

    Raises:
        BenchError: the ledger is inconsistent, or delta out of bounds.
    """
    records = run.client_data == "records"
    each_at_one_client = records or run.task.text is not None
    shared = bool(releases) and not each_at_one_client and clients_dir is not None
    budgeted = [sum_ for sum_ in run.sums() if sum_.private and sum_.budget is not None]
    noise: Any = next(
        (
            sum_.noise
            for sum_ in budgeted
            if sum_.noise is not None and sum_.noise.follows_loss
        ),
        None,
    )
    follows = noise is not None
    context = AccountContext(
        images=(
            image_use(run, clients_dir) if shared and clients_dir is not None else None
        ),
        no_images=(
            "each record is at one client, whose account is what is proven"
            if each_at_one_client
            else "the run's partition was not given"
        ),
        search=search,
        own_streams=run.streams == "own",
        chosen=run.validation.every > 0
        and (not budgeted or budgeted[0].unit == "client" or not records),
        budget=budgeted[0].budget if budgeted else None,
        adaptive=follows,
        groups=next(
            (
                groups
                for sum_ in run.sums()
                if (groups := getattr(sum_.within_task, "groups", ()))
            ),
            (),
        ),
        before=tuple(before),
        fall=(
            (
                noise.decay,
                run.validation.every * getattr(run.client_update, "inner_steps", 1),
            )
            if follows
            else None
        ),
    )
    own_delta = run.own_delta if delta is None else delta
    chosen = (run.delta or 1e-6) if delta is None else delta
    return account(
        releases,
        delta=chosen,
        claims=run.counted_claims,
        own_delta=own_delta,
        given=context,
    )


def ledger_before(run: Method, references: Mapping[str, Path]) -> list[Release]:
    """The ledger of the run that a run rests on; none where it rests on none.

    It is compared as the run's own is: with the chain and the rounds in the
    training.json beside it, and with what that run's configuration, which is part of
    this one's, makes of it. A ledger that says less would make this run's account
    smaller.

    Raises:
        BenchError: it is not among the `references` (as `engine.train` has them); else
            as `ledger_of`.
    """
    if "ledger.jsonl" not in run.references:
        return []
    earlier = run.references["ledger.jsonl"]
    if "ledger.jsonl" not in references:
        raise BenchError(
            f"{run.folder} rests on the releases of {earlier.folder}: give its"
            " ledger.jsonl as a reference"
        )
    assert isinstance(earlier, Method)
    return ledger_of(earlier, references["ledger.jsonl"].parent)


def account_run(
    run: Method,
    run_dir: Path | str,
    out_path: Path | str,
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
    references: Mapping[str, Path] | None = None,
) -> None:
    """Read a finished run's ledger and write its privacy.json; arguments as for
    `account_of` and `engine.train`.

    Raises:
        BenchError: as `ledger_of` and `account_of`.
    """
    before = ledger_before(run, references or {})
    releases = ledger_of(run, run_dir)
    account = account_of(
        run, releases, clients_dir=clients_dir, search=search, before=before
    )
    write_json(out_path, account.to_json())
