"""Every case gives the bits of golden.json.

A change that is meant to change results writes the file anew: `tests.golden.write`.
"""

import pytest

from tests.golden import runs, write

GOLDEN = write.read()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.make_data(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module", autouse=True)
def same_machine():
    """Skip on other machines: a processor or a library's version may change the order
    of sums.
    """
    machine = runs.machine()
    differences = [
        f"{key} {machine.get(key)} (golden.json: {value})"
        for key, value in GOLDEN["machine"].items()
        if machine.get(key) != value
    ]
    if differences:
        pytest.skip(f"the golden bits are of another machine: {', '.join(differences)}")


def test_golden_file_has_every_case():
    assert set(GOLDEN["cases"]) == set(runs.CASES)


@pytest.mark.parametrize("name", runs.CASES)
def test_golden_run_gives_the_same_bits(name, data, tmp_path):
    runs.files_of(name, data, tmp_path)
    lines = runs.differences(GOLDEN["cases"][name], runs.found_of(tmp_path))
    if lines:
        pytest.fail(f"{name}: " + "\n".join(lines), pytrace=False)
