"""Files that vouch for themselves: whatever is changed in a finished run is refused, in
a line that names the file.
"""

import dataclasses
import itertools
import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dpfedbench
from dpfedbench import files
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import ledger_of
from dpfedbench.federation.agreement import check_agrees
from dpfedbench.manifests import checked, listed
from dpfedbench.verification import check_accounts, check_files
from dpsum.ledger import chain_of
from dpsum.sums import CompositionGroup
from tests.dpfedbench.federation.conftest import (
    LOTS,
    federation,  # noqa: F401
    make_config,
    silos,  # noqa: F401
    train,
)
from tests.dpsum.test_ledger import EVENT
from workflow_jobs.manifests import rule_job, seal

SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"
RUN = make_config({"participation": {"rounds": 4}, "validation": {"every": 2}})
PLACE = Path("results/runs", RUN.folder)
DATA = Path("results/data", RUN.dataset)
CLIENTS = Path("results/clients", RUN.clients_folder)
FILES = {
    "config.yaml": "configure",
    "model.safetensors": "train",
    "history.csv": "train",
    "ledger.jsonl": "train",
    "training.json": "train",
    "metrics.json": "meta_test",
    "privacy.json": "account",
    "audit.json": "audit",
}


class Given(list):
    """In place of Snakemake's lists: the paths, and those with names by their names."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        values = [*positional, *named.values()]
        super().__init__(
            str(path)
            for value in values
            for path in (value if isinstance(value, list) else [value])
        )
        self.__dict__.update(
            {
                key: [str(v) for v in value] if isinstance(value, list) else str(value)
                for key, value in named.items()
            }
        )
        self.get = self.__dict__.get


class Params(SimpleNamespace):
    """In place of Snakemake's parameters."""

    def get(self, name: str) -> Any:
        return getattr(self, name, None)


def snakemake(rule: str, given: Given, made: Given, **more: Any) -> SimpleNamespace:
    """What Snakemake hands to a script."""
    machine = {"kernels": "auto", "checkpoint_seconds": 1e9, "device": "cpu"}
    values = {
        "params": Params(),
        "resources": {},
        "threads": 1,
        "config": {"machine": machine},
    } | more
    log = (
        Path(made[0]).parent / "logs" / f"{rule}.log"
        if made
        else Path("results/logs/log")
    )
    return SimpleNamespace(
        rule=rule, input=given, output=made, log=[str(log)], **values
    )


def call(script: str, *args: Any, **more: Any) -> None:
    """Run a rule's script as Snakemake does."""
    runpy.run_path(
        str(SCRIPTS / f"{script}.py"),
        {"snakemake": snakemake(script, *args, **more)},
        "__main__",
    )


def account() -> None:
    given = Given(
        config=[PLACE / "config.yaml"],
        ledger=PLACE / "ledger.jsonl",
        training=PLACE / "training.json",
        clients=[CLIENTS / "clients.npz", CLIENTS / "summary.json"],
    )
    call("account", given, Given(PLACE / "privacy.json"), params=Params(search=None))


def meta_test() -> None:
    given = Given(
        config=[PLACE / "config.yaml"],
        images=DATA / "images.npy",
        model=PLACE / "model.safetensors",
    )
    call("meta_test", given, Given(PLACE / "metrics.json"))


def audit() -> None:
    """The script audits into a folder of a batch; the rule `audited` copies from
    there.
    """
    batch = Path("results/audits/dp-agr-1")
    ledgers = {
        "ledgers": [PLACE / "ledger.jsonl"],
        "trainings": [PLACE / "training.json"],
    }
    output = Given(folder=batch, checksums=batch.with_name("dp-agr-1.sha256"))
    call("audit", Given(configs=[PLACE / "config.yaml"], **ledgers), output)
    shutil.copytree(batch / f"{RUN.key}-seed0", PLACE, dirs_exist_ok=True)


def verify() -> None:
    call("verify", Given(), Given(), params=Params(searches={RUN.folder: None}))


def faults() -> list[str]:
    """Return the faults of the results folder, one line each."""
    results = Path("results")
    found = [*check_files(results), *check_accounts(results, {RUN.folder: None})]
    lines = [fault for fault in found if fault]
    assert all("\n" not in line for line in lines)
    return lines


@pytest.fixture(scope="module")
def finished(
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with the results of a small run, made by the rules' own scripts."""
    root = tmp_path_factory.mktemp("integrity")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for source, target, rule in (
            (federation[0], DATA, "prepare"),
            (federation[1], CLIENTS, "partition"),
        ):
            shutil.copytree(source, target)
            seal(rule, sorted(target.iterdir()), {})
        call(
            "configure",
            Given(),
            Given(PLACE / "config.yaml"),
            params=SimpleNamespace(run=RUN.plain()),
        )
        given = Given(
            config=[PLACE / "config.yaml"],
            images=DATA / "images.npy",
            clients=CLIENTS / "clients.npz",
            summary=CLIENTS / "summary.json",
        )
        call(
            "train",
            given,
            Given(
                model=PLACE / "model.safetensors",
                history=PLACE / "history.csv",
                ledger=PLACE / "ledger.jsonl",
                training=PLACE / "training.json",
            ),
        )
        meta_test()
        account()
        audit()
    return root


@pytest.fixture
def there(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which the test is in."""
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data: bytes) -> bytes:
    """Without its last line; of what is not text, without its last bytes."""
    return data[: data.rstrip(b"\n").rfind(b"\n") + 1] or data[:-64]


def edited(data: bytes) -> bytes:
    """With another digit, the last one that is there."""
    place = max(data.rfind(digit) for digit in b"123456789")
    return (
        data[:place]
        + (b"1" if data[place : place + 1] != b"1" else b"2")
        + data[place + 1 :]
    )


def said(capsys: pytest.CaptureFixture[str], action: Callable[[], None]) -> str:
    """The line that a job ends with."""
    with pytest.raises(SystemExit) as caught:
        action()
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1 and len(lines) == 1, lines
    return lines[0]


def test_every_file_of_a_finished_run_is_sealed_and_holds(there: Path) -> None:
    found = {name: rule for name, (_, rule) in listed(PLACE).items()}
    assert found == FILES
    assert {path.name for path in PLACE.iterdir() if path.is_file()} == set(FILES)
    checks = list(check_files(Path("results")))
    assert checks.count(None) == len(checks) >= len(FILES)
    assert list(check_accounts(Path("results"))) == [None]
    # `sha256sum -c` reads manifests as they are.
    assert (
        (PLACE / "manifest" / "train-model.sha256")
        .read_text()
        .startswith(f"{files.sha256(PLACE / 'model.safetensors')}  model.safetensors\n")
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *zip(FILES, itertools.cycle([flipped, cut, edited]), strict=False),
        *((name, edited) for name in ("ledger.jsonl", "privacy.json")),
    ],
)
def test_a_changed_file_is_refused_by_every_reader(
    there: Path,
    name: str,
    change: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = PLACE / name
    path.write_bytes(change(path.read_bytes()))
    # A rule that reads it.
    line = said(capsys, lambda: reader(path))
    assert line.startswith(
        f"reader: {path} is damaged or was edited, it is not what the rule"
        f" {FILES[name]} wrote: "
    )
    assert f"`snakemake --cores all {path} --forcerun {FILES[name]}`" in line
    assert "nothing was deleted" in line
    # Who looks through the whole folder.
    assert line.removeprefix("reader: ") in faults()
    # A notebook, which has the path in full and still names the target as Snakemake
    # knows it.
    with pytest.raises(BenchError, match=f"{name} is damaged") as caught:
        read_all(dpfedbench.open_run(PLACE))
    assert f"all {path} --forcerun" in str(caught.value)
    assert str(path.resolve()) in str(caught.value)
    assert path.exists()


def reader(path: Path) -> None:
    """A rule that reads a file and writes none."""
    with rule_job(snakemake("reader", Given(path), Given()), "reader"):
        raise AssertionError("a damaged file was read")


def read_all(run: Any) -> None:
    """All that a notebook may ask of a run."""
    run.history, run.metrics, run.training, run.ledger, run.account, run.trained  # noqa: B018
    checked(run.folder / "audit.json")  # which no notebook reads


def test_a_file_without_a_checksum_is_refused(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that no rule wrote, and one whose manifest was taken away, damaged or is of
    an older version.
    """
    (PLACE / "manifest" / "account-privacy.sha256").unlink()
    (PLACE / "notes.txt").write_text("mine")
    (PLACE / "manifest" / "meta_test-metrics.sha256").write_bytes(
        b"\xff\xfe no checksum\n"
    )
    names = ("metrics.json", "notes.txt", "privacy.json")
    found = faults()
    assert [line.split(" has no checksum in manifest/")[0] for line in found] == [
        f"{PLACE / name}" for name in names
    ]
    line = said(capsys, lambda: reader(PLACE / "privacy.json"))
    assert (
        f"--cores all {PLACE / 'privacy.json'} --forcerun {PLACE / 'privacy.json'}`"
        in line
    )


def test_what_is_not_there_is_named_if_it_was_and_else_no_fault(there: Path) -> None:
    """A folder may be a part of one; but of what a job wrote no part may be gone."""
    shutil.rmtree("results/data")
    shutil.rmtree("results/audits")
    for path in (PLACE / "privacy.json", PLACE / "manifest" / "account-privacy.sha256"):
        path.unlink()
    assert not faults()
    (PLACE / "history.csv").unlink()
    (fault,) = faults()
    assert (
        fault
        == f"{PLACE / 'history.csv'} is missing: run the workflow again to make it"
    )


def test_verify_prints_what_does_not_hold(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify()
    assert (
        capsys.readouterr().err.strip()
        == f"verify: all {len(list(check_files(Path('results')))) + 1} files and"
        " accounts in results are as written"
    )
    for name in ("metrics.json", "history.csv"):
        (PLACE / name).write_text("{}")
    with pytest.raises(SystemExit) as caught:
        verify()
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1
    assert len(lines) == 3
    assert "see above" in lines[2]
    assert lines[0].startswith(f"verify: {PLACE / 'history.csv'} is damaged")
    assert lines[1].startswith(f"verify: {PLACE / 'metrics.json'} is damaged")
    shutil.rmtree("results")
    with pytest.raises(SystemExit):
        verify()
    assert "has no results: give the folder" in capsys.readouterr().err


# What a manifest that was made to fit does not hide


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("delta: 0.001", "delta: 0.1"),
        ("seed: 0", "seed: 1"),
        ("inner_steps: 1", "inner_steps: 2"),
    ],
)
def test_a_configuration_of_another_run_is_refused(
    there: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = PLACE / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    seal("configure", [path])
    found = faults()
    told = said(capsys, account).removeprefix("account: ")
    assert found == [told]
    assert told.startswith(
        f"{path} is in the wrong folder: its values belong to dp-agr/glyphs/"
    )
    assert "--forcerun configure" in told
    with pytest.raises(BenchError, match="is in the wrong folder"):
        dpfedbench.open_run(PLACE)


def rewrite(
    folder: Path,
    change: Callable[[dict[str, Any]], Any],
    keep: int = 4,
    tell: bool = True,
) -> None:
    """Change each of the first lines of a ledger; its chain is made to fit, and
    training.json if that is told.
    """
    path = folder / "ledger.jsonl"
    head = ""
    lines = list[str]()
    for line in path.read_text().splitlines()[:keep]:
        values = json.loads(line)
        change(values)
        lines.append(json.dumps(values | {"previous": head}) + "\n")
        head = chain_of(lines)["head"]
    path.write_text("".join(lines))
    if tell:
        training = json.loads((folder / "training.json").read_text()) | {
            "ledger": chain_of(lines)
        }
        (folder / "training.json").write_text(json.dumps(training))


def sealed(change: Callable[[dict[str, Any]], Any], **more: Any) -> None:
    """As somebody who knows of manifests would do it."""
    rewrite(PLACE, change, **more)
    names = ("model.safetensors", "history.csv", "ledger.jsonl", "training.json")
    seal("train", [PLACE / name for name in names])


def doubled(line: dict[str, Any]) -> None:
    line["noise_multiplier"] *= 2
    line["noise_std"] *= 2


def halved(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(line: dict[str, Any]) -> None:
        line.update({key: line[key] / 2 for key in keys})

    return change


def replaced(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line.update(values)


def rarer(line: dict[str, Any]) -> None:
    line["sampler"]["rate"] /= 100


def secret(line: dict[str, Any]) -> None:
    line["sampler"]["kind"] = "balls-and-bins"


SUM = "query-gradient-sum"
STD = "noise_std"
CHANGES = {
    "all z doubled": (doubled, rf"in round 0 multipliers of {SUM} of \(2.0,\)"),
    "another sampler": (secret, f"a sampler of {SUM}"),
    "a hundredth of the rate": (rarer, "'rate': "),
    "another unit": (replaced(unit="record"), f"a unit of {SUM} of record"),
    "another observer": (replaced(observer="server"), f"observer of {SUM} of server"),
    "another mechanism": (replaced(mechanism="laplace"), f"a mechanism of {SUM}"),
    "another name": (replaced(name="gradient-sum"), f"rounds of {SUM} 0"),
    "another threshold": (
        halved("threshold", "sensitivity", STD),
        rf"a first threshold of {SUM} of \{{0\.25\}}",
    ),
    "half the noise": (halved(STD), "a deviation of the noise of query-"),
    "half the sensitivity": (
        halved("sensitivity", STD),
        rf"a sensitivity of {SUM} of 0\.25",
    ),
    "the ledger of another seed": (
        replaced(noise_stream="1/noise/0"),
        r"a stream of \['1', 'noise'\]",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_ledger_of_another_mechanism_than_the_configurations_is_refused(
    there: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the account, by the audit, and by who looks through the folder, although every
    checksum fits.
    """
    change, told = CHANGES[name]
    sealed(change)
    found = faults()
    (line,) = {said(capsys, action).split(": ", 1)[1] for action in (account, audit)}
    assert line in found
    assert all("made from" in fault for fault in found if fault != line)
    assert line.startswith(f"{PLACE / 'ledger.jsonl'}: ")
    assert "train the run again" in line
    with pytest.raises(BenchError, match=told):
        dpfedbench.open_run(PLACE).ledger  # noqa: B018


@pytest.mark.parametrize("tell", [False, True])
def test_a_ledger_that_was_cut_at_a_lines_end_is_refused(
    there: Path, tell: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its length and end in training.json; and where these were made to fit, by the
    rounds that were run.
    """
    sealed(lambda line: None, keep=3, tell=tell)
    for action in (account, audit):
        line = said(capsys, action)
        assert "ledger.jsonl" in line
        assert (
            "rounds of query-gradient-sum 3"
            if tell
            else "has 3 lines, and training.json"
        ) in line


def test_rounds_that_no_budget_stopped_have_to_be_all_of_them(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed(lambda line: None, keep=3)
    training = json.loads((PLACE / "training.json").read_text()) | {"rounds_run": 3}
    (PLACE / "training.json").write_text(json.dumps(training))
    sealed(lambda line: None, keep=3)
    assert "the ledger has rounds 3, but the run's configuration makes that 4" in said(
        capsys, account
    )


@pytest.fixture(scope="module")
def decaying(
    silos: tuple[Path, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Path]:
    """A run whose noise falls with a loss, and whose clients' sums have a second
    release beside them.
    """
    folder = tmp_path_factory.mktemp("decaying")
    values = {
        "clipping": {"kind": "noised-mean-norm"},
        "participation": {"rounds": 6},
        "noise": {"falls": 1},
    }
    run = make_config(
        values, {"noise": {"kind": "decaying", "decay": 0.5}}, general=LOTS
    )
    train(run, silos, folder)
    return run, folder


def test_noise_that_follows_a_loss_moves_as_it_may(
    decaying: tuple[Any, Path], tmp_path: Path
) -> None:
    run, folder = decaying
    assert len({line.noise_multiplier for line in ledger_of(run, folder)}) > 1, (
        "it fell"
    )
    for change, told in (
        (
            lambda line: (
                line["round"] == 3
                and line.update(noise_multiplier=2 * line["noise_multiplier"])
            ),
            "in round",
        ),
        (
            lambda line: line["name"] == "gradient-sum" and doubled_lists(line),
            r"in round 0 multipliers .* of \(4.0, 2.0",
        ),
        (
            lambda line: line["sampler"].update(rate=line["sampler"]["rate"] / 100),
            "a sampler of gradient-sum",
        ),
    ):
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        rewrite(tmp_path, change, keep=12)
        with pytest.raises(BenchError, match=told):
            ledger_of(run, tmp_path)


def doubled_lists(line: dict[str, Any]) -> None:
    line["noise_multiplier"] *= 2
    line["noise_std"] = [2 * value for value in line["noise_std"]]


def test_what_reads_raw_norms_has_to_say_so(
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    """A ledger that hides that its threshold is no post-processing would have a finite
    epsilon.
    """
    run = make_config(
        {
            "clipping": {"kind": "percentile-of-raw-norms"},
            "participation": {"rounds": 1},
        }
    )
    train(run, federation, tmp_path)
    releases = ledger_of(run, tmp_path)
    rewrite(
        tmp_path, lambda line: line.update(data_dependent_threshold=False, reason="")
    )
    with pytest.raises(
        BenchError, match="as what query-gradient-sum does not account for"
    ):
        ledger_of(run, tmp_path)
    # Another run's: no more private sums, or none at all.
    with pytest.raises(BenchError, match="further releases"):
        check_agrees(make_config({"method": "maml"}), releases, 1)


def test_a_budget_has_the_noise_that_it_is_calibrated_to() -> None:
    """Calibrated anew for the account: z that was raised would say less than epsilon
    3.
    """
    budget = {"epsilon": 3.0, "profile": "proven"}
    run = make_config({"noise": {"multiplier": None}, "budget": budget})
    sampler = run.participation.plan(clients=48, seed=0).describe()
    plan = CompositionGroup(run.sums()).plan(
        sampler, claims=run.claims, counted=True, stepwise=False
    )
    z = plan.noise_multiplier

    def ledger(z: float) -> list[Any]:
        values = {"sampler": sampler, "noise_multiplier": z, "noise_std": 0.5 * z}
        return [
            dataclasses.replace(
                EVENT, round=index, noise_stream=f"0/noise/{index}", **values
            )
            for index in range(12)
        ]

    check_agrees(run, ledger(z), 12)
    with pytest.raises(BenchError, match="multipliers of query-gradient-sum"):
        check_agrees(run, ledger(1.01 * z), 12)


# The manifest itself


def test_files_that_no_rule_declares_are_sealed_beside_those_that_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preview beside the output and what is in an output folder, but no download, and
    nothing that is gone again.
    """
    monkeypatch.chdir(tmp_path)
    place = Path("results/x")
    made = Given(place / "a.csv", place / "folder")
    with rule_job(snakemake("some_rule", Given(), made), "x"):
        for name in (
            "a.csv",
            "preview.csv",
            "folder/own/b.json",
            "download/archive.zip",
            "checkpoint/state.pt",
        ):
            files.write_text(place / name, name)
    assert set(listed(place)) == {"a.csv", "preview.csv"}
    assert set(listed(place / "folder" / "own")) == {"b.json"}
    assert not (place / "download" / "manifest").exists()
    assert not (place / "checkpoint" / "manifest").exists()
    assert {rule for _, rule in listed(place).values()} == {"some_rule"}


def test_a_job_that_fails_leaves_no_manifest_of_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake has taken its outputs away, so that nothing of them is missing for who
    looks.
    """
    monkeypatch.chdir(tmp_path)
    made = Given("results/a.csv")
    with rule_job(snakemake("rule", Given(), made), "x"):
        files.write_text(made[0], "1")
    Path(made[0]).unlink()
    with pytest.raises(SystemExit), rule_job(snakemake("rule", Given(), made), "x"):
        raise BenchError("no")
    assert not listed(Path("results"))
