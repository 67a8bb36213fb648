"""Findings of the second review in docs/privacy.md."""

import dataclasses
import json

import numpy as np

from dpfedbench.data.records import RawRecords, held_out_places, load_records
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dploss import importance_sampling
from dpsum import participation
from dpsum.accounting import calibration
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import correlated_balls_and_bins
from tests.dpfedbench.privacy.test_who_took_part import (
    OF_THE_MACHINE,
    count_all_as_zero,
    files_of,
    run_stages,
)
from tests.dpfedbench.training.conftest import LOTS, make_config
from tests.dpfedbench.training.test_linear_head import EVENED, HEAD
from tests.partitions import make_dirichlet, make_fragments


def test_monte_carlo_bounds_hold_at_all_epsilons_of_the_list():
    """Three ends at each of the list's epsilons and a hundred looks fail together with
    probability at most delta / 1,000.
    """
    delta = 1e-6
    pair = importance_sampling.Pair(np.eye(3), 3, delta)
    assert 100 * 3 * importance_sampling._STEPS * pair._doubt <= delta / 1000


SAMPLER = participation.BallsAndBins(units=1024, cohort=4, rounds=256).describe()


class Answers:
    """Stand-in for `epsilon_after` whose true epsilon is `scale` x rounds / z.

    Args:
        scale: of epsilon.
        lies: the points (z, rounds) at which a true "too much" is told as "enough".
        rng: draws whether a true "enough" is told as "too much"; None: never.
        target: the budget's epsilon.
    """

    def __init__(
        self,
        scale,
        target,
        lies=lambda point: False,
        rng: np.random.Generator | None = None,
    ):
        self.scale = scale
        self.target = target
        self.lies = lies
        self.rng = rng
        self.asked: list[tuple[float, int]] = []

    def __call__(self, profile, sampler, z, done, delta):
        self.asked.append((z, done))
        true = self.scale * done / z
        if true > self.target:
            return 0.0 if self.lies((z, done)) else true
        cautious = self.rng is not None and self.rng.random() < 0.3
        return np.inf if cautious else true


def calibrated(answers, monkeypatch):
    monkeypatch.setattr(calibration, "epsilon_after", answers)
    return calibration.calibrate("proven", SAMPLER, answers.target, 1e-5)


def allowed_rounds(answers, monkeypatch):
    monkeypatch.setattr(calibration, "epsilon_after", answers)
    return calibration.rounds_allowed("proven", SAMPLER, 1.0, 1e-5, answers.target)


def test_run_looks_at_fewer_pairs_than_allowed(monkeypatch):
    counts = []
    for enough in np.geomspace(0.051, 8000, 60):  # the z that is just enough
        answers = Answers(enough / 256, 1.0)
        assert calibrated(answers, monkeypatch) >= enough
        counts.append(len(set(answers.asked)))
    assert max(counts) <= 32
    answers = Answers(1 / 100, 1.0)
    allowed_rounds(answers, monkeypatch)
    searched = len(set(answers.asked))
    sampling = dataclasses.replace(SAMPLER, encoder=np.eye(256).tobytes())
    pairs = set()
    for done in range(1, 257):
        events = Events.planned(((1.0, done),), sampling)
        encoder, rounds = correlated_balls_and_bins._of(events)
        pairs.add((encoder.tobytes(), rounds))
    assert len(pairs) == 8
    accounts = 2  # the run's delta and the paper's
    assert max(counts) + searched + len(pairs) + accounts <= importance_sampling.LOOKS


def test_search_errs_only_at_points_that_true_answers_lead_to(monkeypatch):
    """All other points have wrong answers, and true answers are doubted at random; 200
    searches each.
    """
    rng = np.random.default_rng(0)

    def liar_beside(honest):
        path = set(honest.asked)
        return Answers(honest.scale, 1.0, lambda point: point not in path, rng)

    for _ in range(200):
        enough = float(rng.uniform(0.06, 50))
        honest = Answers(enough / 256, 1.0)
        calibrated(honest, monkeypatch)
        assert calibrated(liar_beside(honest), monkeypatch) >= enough
        most = int(rng.integers(1, 256))
        honest = Answers(1 / (most + 0.5), 1.0)
        assert allowed_rounds(honest, monkeypatch) == most
        assert allowed_rounds(liar_beside(honest), monkeypatch) <= most
    # A lie at such a point is believed.
    assert calibrated(Answers(5 / 256, 1.0, lambda point: True), monkeypatch) < 5


def test_bounds_of_a_pair_are_wrong_together_or_not_at_all():
    """A second look at a pair has the same draws."""
    pairs = [importance_sampling.Pair(np.eye(3) / 1.5, 3, 1e-3) for _ in range(2)]
    for epsilon in (0.5, 1.0, 1.5):
        assert pairs[0].present(epsilon) == pairs[1].present(epsilon)
        assert pairs[0].absent(epsilon) == pairs[1].absent(epsilon)
    pairs[1].present(0.7)
    assert pairs[1].present(0.5) == pairs[0].present(0.5)


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


def two_runs(overlay, deal, tmp_path, monkeypatch):
    """Run the workflow's scripts on two data sets that differ in one label; return the
    files of each run and the sizes of its clients.
    """
    run = make_config(
        {"method": "dp-fl", "evaluation": {"every": 0}, "task": {"ways": 3}},
        {"participation": {"rounds": 2, "cohort": 4}, "validation": {"every": 1}},
        overlay,
        general=LOTS,
    )
    count_all_as_zero(monkeypatch)
    files: list[dict[str, bytes]] = []
    sizes: list[list[int]] = []
    for label in (0, 1):
        folder = tmp_path / str(label)
        data = data_with_label(folder / "data", label)
        clients = deal(load_records(data))
        clients.save(folder / "clients")
        monkeypatch.chdir(folder)
        files.append(files_of(run_stages(run, (data, folder / "clients"))))
        sizes.append([int((held >= 0).sum()) for held in clients.records])
    return files, sizes


def test_dirichlet_sizes_follow_from_labels_and_the_ledger_has_them(
    tmp_path, monkeypatch
):
    """The finding: one label moves the sizes, which the ledger states."""
    values = {"partition": "dirichlet", "concentration": 0.5, "least": 5}
    files, sizes = two_runs(
        {"clients": values},
        lambda data: make_dirichlet(
            data, clients=4, concentration=0.5, least=5, seed=1
        ),
        tmp_path,
        monkeypatch,
    )
    assert sizes[0] != sizes[1]
    assert sum(sizes[0]) == sum(sizes[1]) == 120
    for run_files, client_sizes in zip(files, sizes, strict=True):
        lines = run_files["ledger.jsonl"].decode().splitlines()
        assert lines
        stated = [json.loads(line)["sampler"]["sizes"] for line in lines]
        assert all(value == client_sizes for value in stated)


def test_label_shows_in_checksums_alone_where_sizes_do_not_follow_from_it(
    tmp_path, monkeypatch
):
    """Contributions are zero, so no release depends on the label."""
    (first, second), sizes = two_runs(
        {"clients": {"partition": "fragments", "fragments": 12}},
        lambda data: make_fragments(data, clients=4, fragments=12, seed=0),
        tmp_path,
        monkeypatch,
    )
    assert sizes[0] == sizes[1]
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    differing -= OF_THE_MACHINE.keys()
    # The data set's and the partition's files are among what these jobs read.
    assert differing == {
        "manifest/train-model.sha256",
        "manifest/meta_test-metrics.sha256",
    }


def test_evened_features_follow_from_the_record_and_the_public_images(silos):
    run = make_config(HEAD, EVENED, general=LOTS)
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
    run = make_config(HEAD, EVENED, {"participation": {"rounds": 2}}, general=LOTS)
    make_features(run, data_dir=silos[0], out_dir=tmp_path / "features")
    features = np.load(tmp_path / "features" / FEATURES)
    monkeypatch.chdir(tmp_path)
    folder = run_stages(run, silos)
    assert not (folder / run.features_folder).exists()
    assert len(features[0].tobytes()) == 60 * 4
    files = files_of(folder)
    assert not any(FEATURES in name for name in files)
    for content in files.values():
        assert not any(row.tobytes() in content for row in features)
