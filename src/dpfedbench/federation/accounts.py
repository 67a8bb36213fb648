"""The account of a finished run: what its settings and its partition say beside the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.accounting.account import Account, account
from dpfedbench.accounting.context import AccountContext
from dpfedbench.accounting.image_level import ImageUse
from dpfedbench.accounting.tuning import Search
from dpfedbench.data.partition import Partition
from dpfedbench.errors import BenchError
from dpfedbench.federation.agreement import check_agrees
from dpfedbench.files import read_group, write_json
from dpfedbench.privacy.ledger import Release, read_ledger


def ledger_of(run: Any, run_dir: Path | str) -> list[Release]:
    """The releases of a finished run, all of them and as its configuration has them.

    Raises:
        BenchError: the ledger is missing or damaged, has not the lines that training.json tells of, or says another
            mechanism than the configuration.
    """
    training = read_group(Path(run_dir, "training.json"))
    chain, rounds = training.get("ledger"), training.get("rounds_run")
    if not isinstance(chain, dict) or type(rounds) is not int:
        said = "its ledger's length and end" if not isinstance(chain, dict) else "how many rounds were run"
        raise BenchError(f"{run_dir}/training.json does not say {said}: train the run again")
    path = Path(run_dir, "ledger.jsonl")
    releases = read_ledger(path, chain)
    if run.private and not releases:
        raise BenchError(f"{path} is empty, but {run.method} is private: train the run again")
    if releases and not run.private:
        raise BenchError(f"{path} has releases, but {run.method} claims no privacy")
    try:
        check_agrees(run, releases, rounds)
    except BenchError as error:
        raise BenchError(f"{path}: {error}") from error
    return releases


def image_use(run: Any, clients_dir: Path | str) -> ImageUse:
    """Which clients of a run use which image, and in which round where its plan fixes that.

    Raises:
        BenchError: the partition is missing, damaged or not this run's.
    """
    plan = run.participation.plan(clients=run.clients.count, seed=run.seed)
    rounds = None
    if run.participation.known:
        rounds = np.full(run.clients.count, -1)
        for index in range(plan.rounds):
            rounds[plan.cohort(index)] = index
    used = run.clients.support_per_class + run.clients.query_per_class
    return ImageUse.of(Partition.load(clients_dir), used_per_class=used, rounds=rounds)


def account_of(
    run: Any,
    releases: list[Release],
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
    delta: float | None = None,
    before: Sequence[Release] = (),
) -> Account:
    """What a run's ledger says under every profile.

    Args:
        run: the run (a method).
        releases: its ledger.
        clients_dir: its partition, for the image level; None leaves that out, with the reason.
        search: the declared search for hyper-parameters, if there was one.
        delta: at which epsilon is given, for all units; None: the run's own.
        before: the ledger of the run that this one rests on, where there is one.

    Raises:
        BenchError: the ledger is inconsistent, or delta out of bounds.
    """
    records = run.holds == "records"
    apart = records or run.task.text is not None
    shared = bool(releases) and not apart and clients_dir is not None
    budgeted = [sum_ for sum_ in run.sums if sum_.private and sum_.budget is not None]
    noise: Any = budgeted[0].noise if budgeted else None
    follows = noise is not None and noise.follows_loss
    given = AccountContext(
        images=image_use(run, clients_dir) if shared and clients_dir is not None else None,
        no_images=(
            "each record is at one client, whose account is what holds"
            if apart
            else "the run's partition was not given"
        ),
        search=search,
        chosen=run.validation.every > 0 and (not budgeted or budgeted[0].unit == "client" or not records),
        budget=budgeted[0].budget if budgeted else None,
        adaptive=follows,
        groups=next((groups for sum_ in run.sums if (groups := getattr(sum_.within_task, "groups", ()))), ()),
        before=tuple(before),
        fall=(noise.decay, run.validation.every * run.client_update.inner_steps) if follows else None,
    )
    own_delta = run.own_delta if delta is None else delta
    chosen = (run.delta or 1e-6) if delta is None else delta
    return account(releases, delta=chosen, claims=run.claims, own_delta=own_delta, given=given)


def ledger_before(run: Any, references: Mapping[str, Path]) -> list[Release]:
    """The ledger of the run that a run rests on; none where it rests on none.

    Args:
        run: the run (a method).
        references: files of other runs, as `engine.train` has them.

    Raises:
        BenchError: it is not among them, or damaged.
    """
    if "ledger.jsonl" not in run.references:
        return []
    if "ledger.jsonl" not in references:
        other = run.references["ledger.jsonl"].folder
        raise BenchError(f"{run.folder} rests on the releases of {other}: give its ledger.jsonl as a reference")
    return read_ledger(references["ledger.jsonl"])


def account_run(
    run: Any,
    run_dir: Path | str,
    out_path: Path | str,
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
    references: Mapping[str, Path] | None = None,
) -> None:
    """Read a finished run's ledger and write its privacy.json; arguments as for `account_of` and `engine.train`.

    Raises:
        BenchError: as `ledger_of` and `account_of`.
    """
    before, releases = ledger_before(run, references or {}), ledger_of(run, run_dir)
    found = account_of(run, releases, clients_dir=clients_dir, search=search, before=before)
    write_json(out_path, found.to_json())
