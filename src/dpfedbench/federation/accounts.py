"""The account of a finished run: what its configuration and its partition say beside the ledger."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpfedbench.accounting.account import account
from dpfedbench.accounting.context import AccountContext
from dpfedbench.accounting.image_level import ImageUse
from dpfedbench.accounting.tuning import Search
from dpfedbench.config import RunConfig
from dpfedbench.data.partition import load_partition
from dpfedbench.errors import BenchError
from dpfedbench.federation.composition import claims_of_today
from dpfedbench.federation.participation import make_participation
from dpfedbench.files import write_json
from dpfedbench.privacy.ledger import read_ledger


def image_use(config: RunConfig, clients_dir: Path | str) -> ImageUse:
    """Which clients of a run use which image, and in which round where its plan fixes that.

    Raises:
        BenchError: the partition is missing, damaged or not this run's.
    """
    kind, clients = config.participation.kind, config.clients
    rounds = None
    if kind == "one-pass":
        plan = make_participation(
            kind,
            clients=clients.count,
            cohort=config.participation.cohort,
            rounds=config.participation.rounds,
            seed=config.seed,
        )
        rounds = np.full(clients.count, -1)
        for index in range(plan.rounds):
            rounds[plan.cohort(index)] = index
    used = clients.support_per_class + clients.query_per_class
    return ImageUse.of(load_partition(clients_dir), used_per_class=used, rounds=rounds)


def account_run(
    run_dir: Path | str, out_path: Path | str, *, clients_dir: Path | str | None = None, search: Search | None = None
) -> None:
    """Read a finished run's ledger and write its privacy.json.

    Args:
        run_dir: the run's folder.
        out_path: the file to write.
        clients_dir: the run's partition, for the image level; None leaves that out, with the reason.
        search: the declared search for hyper-parameters, if there was one.

    Raises:
        BenchError: the ledger is missing, damaged or inconsistent, or a private run's is empty.
    """
    run_dir = Path(run_dir)
    config = RunConfig.from_yaml(run_dir / "config.yaml")
    releases = read_ledger(run_dir / "ledger.jsonl")
    if config.private and not releases:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} is empty, but {config.method} is private: train the run again")
    if releases and not config.private:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} has releases, but {config.method} claims no privacy")
    shared = bool(releases) and not config.on_records and clients_dir is not None
    decay = 1.0 if config.noise is None else config.noise.decay
    given = AccountContext(
        images=image_use(config, clients_dir) if shared and clients_dir is not None else None,
        no_images=(
            "each record is at one client, whose account is what holds"
            if config.on_records
            else "the run's partition was not given"
        ),
        search=search,
        chosen=config.validation.every > 0 and not config.by_record,
        budget=config.budget,
        adaptive=decay < 1,
        fall=(decay, config.validation.every * config.client_update.inner_steps) if decay < 1 else None,
    )
    own_delta = None if config.local is None else config.local.delta
    found = account(
        releases, delta=config.delta or 1e-6, claims=claims_of_today(config), own_delta=own_delta, given=given
    )
    write_json(out_path, found.to_json())
