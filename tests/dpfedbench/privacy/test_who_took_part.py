"""Independence of all files of a private run from who took part, and from labels.

Two runs of one configuration draw other cohorts (or lots), or have other labels. All
contributions are zero and the noise is the same, so their releases are equal. What
differs between the two folders then follows from who took part, or from a label.
"""

import dataclasses
import json

import numpy as np
import pytest

from dpfedbench.data.records import held_out_places, load_records
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dpsum import participation
from dpsum.private_sum import PlainSum, PrivateSum
from tests import finished_run
from tests.dpfedbench.training.conftest import (
    difference_config,
    lots_config,
    make_config,
)
from tests.dpfedbench.training.test_linear_head import EVENED, HEAD
from tests.partitions import make_dirichlet, make_fragments
from tests.small_data import draw_digits

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
    f"benchmark/{job}.tsv" for job in ("configure", "meta_test", "account")
}
OF_THE_MACHINE |= {"logs/meta_test.log"}
"""Files that may differ: each measures a stage that does not know who took part."""


def run_stages(run, folders):
    """Run the workflow's scripts for one run here; return its files by name."""
    finished_run.copy_inputs(run, *folders)
    finished_run.configure(run)
    machine = finished_run.MACHINE | {"checkpoint_seconds": 0, "kernels": "off"}
    finished_run.train_run(run, config={"machine": machine})
    finished_run.meta_test(run)
    finished_run.account(run)
    folder = finished_run.folder_of(run)
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
    assert differing <= OF_THE_MACHINE


@pytest.mark.usefixtures("contributions_are_zero")
def test_comparison_detects_a_run_without_privacy(federation, tmp_path, monkeypatch):
    """Its history has losses of the cohort, whose contributions are zero here too."""
    run = make_config(SHORT, POISSON, {"method": "maml"})
    (first, second), _ = files_of_two_runs(run, federation, tmp_path, monkeypatch)
    assert first["history.csv"] != second["history.csv"]


# Labels and features of records


def data_with_label(folder, label):
    """Save 120 records, the first of which has this label; return their folder."""
    digits = draw_digits(np.random.default_rng(0), train=12, test=6)
    digits.train_labels[0] = label
    digits.save(folder, {"name": "digits"})
    return folder


def files_of_two_labels(kind, values, tmp_path, monkeypatch):
    """Run the workflow's scripts on two data sets that differ in one label; return the
    files of each run and the sizes of its clients.
    """
    run = lots_config(
        {"method": "dp-fl", "evaluation": {"every": 0}},
        {"participation": {"rounds": 2, "lot": 4}, "validation": {"every": 1}},
        {"clients": {"partition": kind, **values}},
    )
    deal = {"dirichlet": make_dirichlet, "fragments": make_fragments}[kind]
    files = []
    sizes = []
    for label in (0, 1):
        folder = tmp_path / str(label)
        data = data_with_label(folder / "data", label)
        clients = deal(load_records(data), clients=4, seed=0, **values)
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
    files, sizes = files_of_two_labels("dirichlet", values, tmp_path, monkeypatch)
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
    runs = files_of_two_labels("fragments", {"fragments": 12}, tmp_path, monkeypatch)
    (first, second), sizes = runs
    assert sizes[0] == sizes[1]
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    # The data set's and the partition's files are among what these jobs read.
    read = {"manifest/train-model.sha256", "manifest/meta_test-metrics.sha256"}
    assert differing - OF_THE_MACHINE == read


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
    assert not (finished_run.folder_of(run) / run.features_folder).exists()
    assert len(features[0].tobytes()) == 60 * 4
    assert not any(FEATURES in name for name in files)
    for content in files.values():
        assert not any(row.tobytes() in content for row in features)
