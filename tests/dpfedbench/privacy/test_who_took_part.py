"""Independence of all files of a private run from who took part, and from labels.

Two runs of one configuration draw other cohorts (or lots), or have other labels. All
contributions are zero and the noise is the same, so their releases are equal. What
differs between the two folders then follows from who took part, or from a label.
"""

import dataclasses
import functools
import json

import numpy as np
import pytest

from dpfedbench.data.records import RawRecords, held_out_places, load_records
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dpsum import participation
from dpsum.private_sum import PlainSum, PrivateSum
from tests.dpfedbench.training.conftest import (
    difference_config,
    lots_config,
    make_config,
)
from tests.dpfedbench.training.test_linear_head import EVENED, HEAD
from tests.finished_run import (
    MACHINE,
    account,
    configure,
    copy_inputs,
    folder_of,
    meta_test,
    train_run,
)
from tests.partitions import make_dirichlet, make_fragments

SHORT = {
    "participation": {"cohort": 12, "rounds": 4},
    "validation": {"every": 2, "tasks": 4, "ensemble": 2},
}
FOUR_ROUNDS = {"participation": {"rounds": 4}, "validation": {"every": 2}}
POISSON = {"participation": {"kind": "poisson"}}
RUNS = {
    "balls-and-bins": make_config(SHORT, {"participation": {"kind": "balls-and-bins"}}),
    "Poisson": make_config(SHORT, POISSON),
    "differences": difference_config(FOUR_ROUNDS),
    "lots": lots_config(FOUR_ROUNDS),
}

OF_THE_MACHINE = {
    "benchmark/configure.tsv": "written before the training",
    "benchmark/meta_test.tsv": "its stage reads the released model and public data",
    "benchmark/account.tsv": "its stage reads the ledger and the partition",
    "logs/meta_test.log": "has the rate of that stage",
}
"""Files that may differ, with the reason; each measures time or memory of a stage that
does not know who took part.
"""


def run_stages(run, folders):
    """Run the workflow's scripts for one run here; return its files by name."""
    copy_inputs(run, *folders)
    configure(run)
    machine = MACHINE | {"checkpoint_seconds": 0, "kernels": "off"}
    train_run(run, config={"machine": machine})
    meta_test(run)
    account(run)
    folder = folder_of(run)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def contributions_are_zero(monkeypatch):
    """Make each contribution to a sum count as zero."""
    for kind in (PrivateSum, PlainSum):

        def adding(self, add, count, add_by=kind.add_by):
            def add_nothing(limit, total, norms):
                before = total.copy()
                add(limit, total, norms)
                total[...] = before

            return add_by(self, add_nothing, count)

        monkeypatch.setattr(kind, "add_by", adding)


def files_of_two_runs(run, folders, tmp_path, monkeypatch):
    """Return the files of both runs by name, and each run's cohorts and drawn streams."""
    draw = participation.stream
    files = []
    drawn = []
    for name in ("first", "second"):
        streams = set()

        def other_stream(seed, purpose, *rest, name=name, streams=streams):
            streams.add(purpose)
            return draw(seed, f"{purpose} of the {name}", *rest)

        monkeypatch.setattr(participation, "stream", other_stream)
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        files.append(run_stages(run, folders))
        plan = run.participation.plan(clients=run.clients.count, seed=run.stream_seed)
        cohorts = map(plan.sample_cohort, range(run.participation.rounds))
        drawn.append(([cohort.tolist() for cohort in cohorts], streams))
    return files, drawn


@pytest.mark.usefixtures("contributions_are_zero")
@pytest.mark.parametrize("name", RUNS)
def test_files_of_a_private_run_do_not_depend_on_who_took_part(
    federation, silos, tmp_path, monkeypatch, name
):
    run = RUNS[name]
    folders = silos if run.client_data == "records" else federation
    (first, second), drawn = files_of_two_runs(run, folders, tmp_path, monkeypatch)
    for _, streams in drawn:
        assert streams & {"participation", "lot"}
    if name != "lots":  # whose clients are there in each round
        assert drawn[0][0] != drawn[1][0]
    assert first.keys() == second.keys()
    expected = {"history.csv", "training.json", "ledger.jsonl", "logs/train.log"}
    expected |= {"manifest/train-model.sha256", "privacy.json", "metrics.json"}
    assert expected <= first.keys()
    assert "benchmark/train.tsv" not in first
    differing = {key for key in first if first[key] != second[key]}
    assert differing <= OF_THE_MACHINE.keys()


@pytest.mark.usefixtures("contributions_are_zero")
def test_comparison_detects_a_run_without_privacy(federation, tmp_path, monkeypatch):
    """Its history has losses of the cohort, whose contributions are zero here too."""
    run = make_config(SHORT, POISSON, {"method": "maml"})
    (first, second), _ = files_of_two_runs(run, federation, tmp_path, monkeypatch)
    assert first["history.csv"] != second["history.csv"]


# Labels and features of records


def data_with_label(folder, label):
    """Save 120 records, the first of which has this label; return their folder."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [50, 30, 40])
    labels[0] = label
    raw = RawRecords(
        train_images=rng.integers(256, size=(120, 28, 28, 1), dtype=np.uint8),
        train_labels=labels,
        test_images=rng.integers(256, size=(60, 28, 28, 1), dtype=np.uint8),
        test_labels=np.arange(60) % 3,
        class_names=("a", "b", "c"),
        versions={},
    )
    raw.save(folder, {"name": "digits"})
    return folder


def files_of_two_labels(partition, deal, tmp_path, monkeypatch):
    """Run the workflow's scripts on two data sets that differ in one label; return the
    files of each run and the sizes of its clients.
    """
    run = lots_config(
        {"method": "dp-fl", "evaluation": {"every": 0}, "task": {"ways": 3}},
        {"participation": {"rounds": 2, "cohort": 4}, "validation": {"every": 1}},
        {"clients": partition},
    )
    files = []
    sizes = []
    for label in (0, 1):
        folder = tmp_path / str(label)
        data = data_with_label(folder / "data", label)
        clients = deal(load_records(data), clients=4)
        clients.save(folder / "clients")
        monkeypatch.chdir(folder)
        files.append(run_stages(run, (data, folder / "clients")))
        sizes.append([int((held >= 0).sum()) for held in clients.records])
    return files, sizes


@pytest.mark.usefixtures("contributions_are_zero")
def test_dirichlet_sizes_follow_from_labels_and_the_ledger_has_them(
    tmp_path, monkeypatch
):
    """The finding: one label moves the sizes, which the ledger states."""
    values = {"concentration": 0.5, "least": 5}
    deal = functools.partial(make_dirichlet, seed=1, **values)
    partition = {"partition": "dirichlet", **values}
    files, sizes = files_of_two_labels(partition, deal, tmp_path, monkeypatch)
    assert sizes[0] != sizes[1]
    assert sum(sizes[0]) == sum(sizes[1]) == 120
    for run_files, client_sizes in zip(files, sizes, strict=True):
        lines = run_files["ledger.jsonl"].decode().splitlines()
        assert lines
        for line in lines:
            assert json.loads(line)["sampler"]["sizes"] == client_sizes


@pytest.mark.usefixtures("contributions_are_zero")
def test_label_shows_in_checksums_alone_where_sizes_do_not_follow_from_it(
    tmp_path, monkeypatch
):
    """Contributions are zero, so no release depends on the label."""
    deal = functools.partial(make_fragments, fragments=12, seed=0)
    partition = {"partition": "fragments", "fragments": 12}
    (first, second), sizes = files_of_two_labels(partition, deal, tmp_path, monkeypatch)
    assert sizes[0] == sizes[1]
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    # The data set's and the partition's files are among what these jobs read.
    read = {"manifest/train-model.sha256", "manifest/meta_test-metrics.sha256"}
    assert differing - OF_THE_MACHINE.keys() == read


def test_evened_features_follow_from_the_record_and_the_public_images(silos):
    run = lots_config(HEAD, EVENED)
    dataset = load_records(silos[0])
    public, _ = held_out_places(dataset, run.validation.tasks)
    private = dataset.splits["train"]

    def features_with(changed):
        images = np.array(dataset.images)
        images[changed] = 255 - images[changed]
        data = dataclasses.replace(dataset, images=images)
        (features,) = features_of(run, data, [private])
        return features

    before = features_with(np.array([], int))
    after = features_with(private[7:8])
    moved = (before != after).any(axis=(1, 2, 3))
    assert np.flatnonzero(moved).tolist() == [7]
    for changed in (public[:1], public):
        assert (features_with(changed) != before).any(axis=(1, 2, 3)).all()


def test_features_are_in_no_file_of_a_run(silos, tmp_path, monkeypatch):
    run = lots_config(HEAD, EVENED, {"participation": {"rounds": 2}})
    make_features(run, data_dir=silos[0], out_dir=tmp_path / "features")
    features = np.load(tmp_path / "features" / FEATURES)
    monkeypatch.chdir(tmp_path)
    files = run_stages(run, silos)
    assert not (folder_of(run) / run.features_folder).exists()
    assert len(features[0].tobytes()) == 60 * 4
    assert not any(FEATURES in name for name in files)
    for content in files.values():
        assert not any(row.tobytes() in content for row in features)
