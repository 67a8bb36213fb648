"""Account of a finished run, from its ledger, its settings and its partition."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.breaches import uncovered_notices
from dpfedbench.data.partition import Partition
from dpfedbench.errors import BenchError
from dpfedbench.files import read_group, read_json, text_of, write_json
from dpfedbench.models.references import reference
from dpfedbench.run import Run
from dpfedbench.training.agreement import check_agrees
from dpsum.accounting.account import Account, account
from dpsum.accounting.calibration import delta_after
from dpsum.accounting.claims import Claims
from dpsum.accounting.context import AccountContext
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from dpsum.ledger import Release, read_ledger

_POINTS = 25
"""Rounds at which δ over the rounds is computed."""


def finished_ledger(folder: Path) -> tuple[list[Release], int]:
    """Return the releases of a finished run, and the number of rounds that it ran.

    The ledger is compared with the chain in the training.json beside it.

    Raises:
        BenchError: as `dpsum.ledger.read_ledger`; or training.json is missing, damaged,
            or does not describe the ledger.
    """
    training = read_group(folder / "training.json")
    chain = training.get("ledger")
    rounds = training.get("rounds_run")
    if not isinstance(chain, dict) or type(rounds) is not int:
        raise BenchError(
            f"{folder / 'training.json'} lacks its ledger's length and end, or the"
            " number of its rounds: train the run again"
        )
    path = folder / "ledger.jsonl"
    text_of(path)  # reports an unreadable ledger like any other file of a run
    return read_ledger(path, chain), rounds


def ledger_of(run: Run, run_dir: Path | str) -> list[Release]:
    """Return all releases of a finished run, checked against its configuration.

    Raises:
        BenchError: the ledger is missing or damaged, lacks lines that training.json
            counts, or describes another mechanism than the configuration.
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


def read_account(path: Path | str) -> Account:
    """Return a run's privacy.json.

    Raises:
        BenchError: the file is missing or damaged.
    """
    return Account.from_json(read_json(path), str(path))


def image_use(run: Run, clients_dir: Path | str) -> ImageUse:
    """Return which clients of a run use which image, and in which round.

    The rounds are given where the participation plan fixes them.

    Raises:
        BenchError: the partition is missing, damaged or not this run's, or its clients
            hold fewer images than they use.
    """
    plan = run.plan
    rounds = None
    if run.participation.known:
        rounds = np.full(run.clients.count, -1)
        for index in range(plan.rounds):
            rounds[plan.sample_cohort(index)] = index
    partition = Partition.load(clients_dir)
    # Clients use the first images that they hold of each class.
    used_per_class = run.clients.support_per_class + run.clients.query_per_class
    if used_per_class > partition.examples_per_class:
        raise BenchError(
            f"the clients hold {partition.examples_per_class} images a class, fewer"
            f" than the {used_per_class} of support and query: delete the clients'"
            " folder and run the workflow again"
        )
    if rounds is not None and len(rounds) != len(partition):
        raise BenchError(
            f"the partition has {len(partition)} clients, but the run has"
            f" {len(rounds)}: delete the clients' folder and run the workflow again"
        )
    examples = partition.examples[:, :, :used_per_class].astype(np.int64)
    per_class = int(examples.max(initial=0)) + 1
    images = partition.classes.astype(np.int64)[:, :, None] * per_class + examples
    return ImageUse(images=images.reshape(len(partition), -1), rounds=rounds)


def account_of(
    run: Run,
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
        clients_dir: folder of its partition, for the image level; with None the account
            gives a reason in place of that level.
        search: the declared search for hyper-parameters, if there was one.
        delta: δ at which ε is reported, for all units; None: the run's own.
        before: ledger of the earlier private run that this run builds on, if there is
            one.

    Raises:
        BenchError: the ledger is inconsistent, or delta out of bounds.
    """
    images = None
    no_images = "the run's partition was not given"
    if run.client_data == "records" or run.task.text is not None:
        no_images = "each record is at one client, whose account is what is proven"
    elif releases and clients_dir is not None:
        images = image_use(run, clients_dir)
    context = dataclasses.replace(
        _context_of(run),
        images=images,
        no_images=no_images,
        search=search,
        before=tuple(before),
    )
    earlier = run.references.get("ledger.jsonl")
    if before and earlier is not None:
        context = dataclasses.replace(
            context,
            before_claims=earlier.counted_claims,
            before_context=_context_of(earlier),
        )
    own_delta = run.own_delta if delta is None else delta
    if delta is None:
        delta = run.delta or 1e-6
    return account(
        releases,
        delta=delta,
        claims=run.counted_claims,
        own_delta=own_delta,
        context=context,
    )


def _context_of(run: Run) -> AccountContext:
    """Return what an account reads of a run's configuration."""
    specs = run.all_sums
    budgeted = [spec for spec in specs if spec.private and spec.budget is not None]
    following = [
        spec.private_noise for spec in budgeted if spec.private_noise.follows_loss
    ]
    decay_step = None
    if following:
        lots = getattr(run.client_update, "inner_steps", 1)
        decay_step = following[0].decay_step[0], run.validation.every * lots
    group_sizes = [getattr(spec.within_task, "groups", ()) for spec in specs]
    # Runs that protect records validate on records of no client.
    of_clients = not budgeted or budgeted[0].unit == "client"
    validates_on_clients = of_clients or run.client_data != "records"
    return AccountContext(
        own_streams=run.streams == "own",
        chosen=run.validation.every > 0 and validates_on_clients,
        budget=budgeted[0].budget if budgeted else None,
        adaptive=bool(following),
        groups=next(filter(None, group_sizes), ()),
        decay_step=decay_step,
    )


def ledger_before(run: Run, references: Mapping[str, Path]) -> list[Release]:
    """Return the ledger of the earlier run that a run builds on; empty without one.

    The earlier ledger is checked like the run's own: against the chain and the rounds
    in the training.json beside it, and against the earlier run's configuration, which
    is part of this one's. A ledger with missing releases would make this run's account
    too small.

    Raises:
        BenchError: the ledger is not among the `references` (as `engine.train` has
            them); else as `ledger_of`.
    """
    earlier = run.references.get("ledger.jsonl")
    if earlier is None:
        return []
    path = reference(references, "ledger.jsonl", earlier.folder)
    return ledger_of(earlier, path.parent)


def account_run(
    run: Run,
    run_dir: Path | str,
    out_path: Path | str,
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
    references: Mapping[str, Path] | None = None,
) -> None:
    """Read a finished run's ledger and write its privacy.json.

    The arguments are those of `account_of` and `engine.train`.

    Raises:
        BenchError: as `ledger_of` and `account_of`.
    """
    before = ledger_before(run, references or {})
    releases = ledger_of(run, run_dir)
    account = account_of(
        run, releases, clients_dir=clients_dir, search=search, before=before
    )
    notices = (*account.notices, *uncovered_notices(run))
    write_json(out_path, dataclasses.replace(account, notices=notices).to_json())


def planned_deltas(
    cells: Iterable[Mapping[str, Any]],
    figure: Mapping[str, Any],
    claims: Mapping[str, Claims],
) -> pd.DataFrame:
    """Return δ of runs that are planned and not trained, by accounting alone.

    Args:
        cells: cells of a figure of accounts, each with its `mechanism`.
        figure: the figure's section of the experiment file: each series has a `profile`
            and an `epsilon`. Over the column "round" δ is computed after several
            numbers of rounds, over a swept value after all rounds.
        claims: what the paper of each method claims.

    Returns:
        The columns of the cells, with `x`, `value` (δ) and `is_dashed` (for a claim),
        one row for each point.
    """
    points = []
    for cell in cells:
        series = figure["series"][cell["series"]]
        mechanism = cell["mechanism"]
        total = int(mechanism["sampler"]["rounds"])
        rounds_by_x = {cell["x"] or 0.0: total}
        if "column" in figure["x"]:
            spaced = np.linspace(1, total, min(_POINTS, total)).round()
            rounds_by_x = {float(rounds): int(rounds) for rounds in spaced}
        multiplier = mechanism["noise_multiplier"]
        profile = series["profile"]
        # Nothing is proven where the clipping threshold reads raw norms.
        unproven = profile == "proven" and not mechanism["counted"]
        for x, rounds in rounds_by_x.items():
            delta = 1.0
            if multiplier is not None and not unproven:
                delta = delta_after(
                    profile,
                    mechanism["sampler"],
                    multiplier,
                    rounds,
                    series["epsilon"],
                    claims=claims[cell["method"]],
                    mechanism=mechanism["mechanism"],
                )
            dashed = profile == "claimed"
            points.append({**cell, "x": x, "value": delta, "is_dashed": dashed})
    return pd.DataFrame(points)
