"""Every case gives the bits of golden.json: those of the code as it was when that file
was written.

A change that is meant to move results writes the file anew: `tests.golden.write`.
"""

import pytest

from tests.golden import runs, write

GOLDEN = write.read()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.make_data(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module", autouse=True)
def same_machine():
    """Skips elsewhere: another processor or another version of a library adds up in
    another order.
    """
    here = runs.machine()
    written = GOLDEN["machine"].items()
    other = [
        f"{key} {here.get(key)} (golden.json: {value})"
        for key, value in written
        if here.get(key) != value
    ]
    if other:
        pytest.skip(f"the golden bits are of another machine: {', '.join(other)}")


def test_the_file_has_every_case():
    assert set(GOLDEN["cases"]) == set(runs.CASES)


@pytest.mark.parametrize("name", runs.CASES)
def test_a_run_gives_the_same_bits(name, data, tmp_path):
    runs.files_of(name, data, tmp_path)
    moved = runs.differences(GOLDEN["cases"][name], runs.found_of(tmp_path))
    if moved:
        pytest.fail(f"{name}: " + "\n".join(moved), pytrace=False)
