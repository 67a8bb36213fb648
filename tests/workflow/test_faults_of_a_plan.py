"""One file with a fault of each kind: one call lists all of them, before any job."""

from PIL import Image

from tests.pages import files_of_page
from tests.shipped import without_others

FILE = """
plugins: [qffl]
datasets:
  people:
    reader: image-folder
    version: 1
    source: drawn for a test
    licence: MIT
    options: {folder: people, size: 28, channels: 1, test_images: 2}
experiments:
  mine:
    title: Mine
    run:
      dataset: people
      task: {ways: 2, shots: 0}
      validation: {tasks: 2}
      model: {kind: cnn}
    tasks:
      pictures:
        clients: {partition: fragments, count: 4, fragments: 8}
    variants:
      seven:
        clients: {count: 7, fragments: 7}
    tables:
      table1:
        title: t
        tasks: [pictures]
        seeds: [0]
        series:
          few:
            method: maml
            run:
              task: {shots: 1}
              clients: {partition: shared}
              participation: {cohort: 2, rounds: 2}
          lot:
            method: dp-fl
            run:
              participation: {lot: 5, rounds: 2}
          old:
            method: dp-fl
            run:
              participation: {cohort: 3, rounds: 2}
          fixed:
            method: dp-q-ffl
            run:
              participation: {kind: poisson, cohort: 2, rounds: 2}
              noise: {multiplier: null}
              h_noise: {multiplier: 0.5}
              clipping: {threshold: 1}
              budget: {epsilon: 1, delta: 1.0e-3, profile: proven}
          seven:
            method: dp-fedavg
            use: seven
            run: {participation: {kind: poisson, cohort: 2, rounds: 2}}
          typo: {method: dp-fl, run: {clients: {cuont: 4}}}
"""


def test_all_faults_of_a_plan_are_listed_at_once(snakemake, tmp_path):
    """16 training records: 4 for each of 4 clients, and not divisible by 7."""
    for label in ("bright", "dark"):
        (tmp_path / "people" / label).mkdir(parents=True)
        for number in range(10):
            image = Image.new("L", (28, 28), 200 if label == "bright" else number)
            image.save(tmp_path / "people" / label / f"{number}.png")
    code = files_of_page("your-method.md")["qffl.py"]
    (tmp_path / "qffl.py").write_text(code, encoding="utf-8")
    text = without_others(FILE) + f"data: {{local_dir: {tmp_path}}}\n"
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    lines = text.splitlines()

    def line_of(start):
        (number,) = [
            index
            for index, line in enumerate(lines, 1)
            if line.strip().startswith(start)
        ]
        return f"mine.yaml, line {number})"

    options = ("--dry-run", "--quiet", "rules", "--configfile", str(path))
    done = snakemake(*options, directory=tmp_path)
    assert done.returncode == 1
    shown = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert "configuration: 6 faults" in done.stderr
    assert not (tmp_path / "results").exists()
    expected = {
        "few": ("people holds labelled records", "few:"),
        "lot": ("participation.lot is 5", "participation: {lot: 5"),
        "old": ("poisson-lots has lot in its place", "participation: {cohort: 3"),
        "fixed": ("set h_noise.multiplier to null", "h_noise: {multiplier"),
        "seven": (
            "clients.count is 7, which does not divide the 16",
            "clients: {count: 7",
        ),
        "typo": ("unknown key", "typo: {method"),
    }
    assert len(shown) == len(expected)
    for line, (series, (message, start)) in zip(shown, expected.items(), strict=True):
        assert message in line, line
        cell = f"experiments.mine.tables.table1, task pictures, series {series}]"
        assert cell in line, line
        assert line.endswith(line_of(start)), line
