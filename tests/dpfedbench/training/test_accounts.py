"""A run's folder to its privacy.json; the images that its partition uses."""

import itertools

import numpy as np
import pytest

from dpfedbench.breaches import notices_of, uncovered_notices
from dpfedbench.data.partition import Partition
from dpfedbench.files import write_json
from dpfedbench.training.accounts import image_use
from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.account import PROFILES
from dpsum.accounting.tuning import Search
from dpsum.ledger import Ledger
from tests.dpsum.helpers import make_releases

from .conftest import PLAIN, accounted, difference_config, make_config, train_model

SUM = "query-gradient-sum"
SAMPLER = {"kind": "one-pass", "clients": 48, "cohort": 4, "rounds": 12, "rate": 4 / 48}
LINES = make_releases(12, name=SUM, sampler=SAMPLER)


def write_account(folder, lines, *overlays, **options):
    config = make_config(*overlays)
    ledger = Ledger(folder / "ledger.jsonl")
    for line in lines:
        ledger.append(line)
    training = {"rounds_run": config.participation.rounds, "ledger": ledger.chain}
    write_json(folder / "training.json", training)
    return accounted(config, folder, **options)


def test_account_of_a_run_has_the_images_of_its_partition(tmp_path, federation):
    search = Search(runs=2, data="public")
    values = write_account(tmp_path, LINES, clients_dir=federation[1], search=search)
    assert list(values["profiles"]) == list(PROFILES)
    assert values["reasons"] == {}
    row = values["profiles"]["image_level"]
    square = image_use(make_config(), federation[1]).worst_square([1.0] * 12)
    assert row["epsilon_high"] == gaussian_epsilon(square**-0.5, 1e-3)
    assert row["uses_max"] > 1


@pytest.mark.parametrize(
    ("lines", "overlay", "message"),
    [
        ([], {}, "is empty, but dp-agr is private"),
        (LINES, PLAIN, "has releases, but maml claims no privacy"),
        (make_releases(12, name=SUM), {}, f"a sampler of {SUM} of "),
    ],
)
def test_account_refuses_a_ledger_of_another_method(tmp_path, lines, overlay, message):
    with pytest.raises(DpsumError, match=rf"ledger\.jsonl.*{message}"):
        write_account(tmp_path, lines, overlay)
    assert not (tmp_path / "privacy.json").exists()


def test_account_has_a_notice_of_validation_on_private_data(tmp_path):
    """No account covers the validation accuracies, so privacy.json says so."""
    private = {"validation": {"every": 2, "public": False}}
    values = write_account(tmp_path, LINES, private)
    (notice,) = values["notices"]
    assert notice.startswith("validation.public is false: validation accuracies")
    assert notice in notices_of(make_config(private))


@pytest.mark.parametrize(
    "overlay",
    [
        {"validation": {"every": 2}},
        {"validation": {"every": 0, "public": False}},
        {"method": "maml", "validation": {"every": 2, "public": False}},
    ],
    ids=["public data", "no validation", "no privacy"],
)
def test_runs_without_private_validation_have_no_such_notice(overlay):
    assert uncovered_notices(make_config(overlay)) == ()


def test_account_has_a_notice_of_personal_accuracies(tmp_path, silos):
    """They differ with who took part, where clients keep a state."""
    run = difference_config({"clients": {"held_out_share": 0.2}})
    train_model(run, silos, tmp_path)
    (notice,) = accounted(run, tmp_path)["notices"]
    assert notice.startswith("personal accuracies exist only in the simulation")
    assert notice in notices_of(run)


def test_image_use_counts_a_partition_and_the_blocks_of_the_run(federation, apart):
    """Counted image by image; of four examples one of support and two of query are
    used.
    """
    use = image_use(make_config(), federation[1])
    partition = Partition.load(federation[1])
    users = {}
    for client, way in itertools.product(range(48), range(3)):
        for example in partition.examples[client, way, :3]:
            image = partition.classes[client, way], example
            users.setdefault(image, []).append(client)
    assert sorted(use.counts()) == sorted(map(len, users.values()))
    assert sorted(np.bincount(use.rounds)) == [4] * 12
    squares = [(np.bincount(use.rounds[ids]) ** 2).sum() for ids in users.values()]
    assert use.worst_square([1.0] * 12) == pytest.approx(max(squares))
    assert max(squares) > 1
    clients = {"partition": "disjoint", "count": 4}
    participation = {"cohort": 2, "rounds": 2}
    run = make_config({"clients": clients, "participation": participation})
    disjoint = image_use(run, apart[1])
    assert set(disjoint.counts()) == {1}
    assert disjoint.worst_square([2.0, 2.0]) == 0.25


def test_image_use_refuses_a_partition_of_another_run(federation):
    sizes = {"examples_per_class": 6, "query_per_class": 5}
    with pytest.raises(DpsumError, match="fewer than the 6"):
        image_use(make_config({"clients": sizes}), federation[1])
    run = make_config({"clients": {"count": 24}, "participation": {"rounds": 6}})
    with pytest.raises(DpsumError, match="48 clients, but the run has 24"):
        image_use(run, federation[1])
