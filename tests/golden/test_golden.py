"""Every case gives the bits of golden.json, or its numbers on another machine.

A processor or a library's version may change the order of sums, and so the last bits. A
change that is meant to change results writes the file anew: `tests.golden.write`.
"""

import pytest

from tests.golden import runs, write

GOLDEN = write.read()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.make_data(tmp_path_factory.mktemp("golden"))


def test_golden_file_has_every_case():
    assert set(GOLDEN["cases"]) == set(runs.CASES)


@pytest.mark.parametrize("name", runs.CASES)
def test_golden_run_gives_the_same_bits_or_numbers(name, data, tmp_path):
    """The bits where the machine is that of golden.json, else the numbers, within the
    tolerances of `runs`.
    """
    same_machine = runs.machine() == GOLDEN["machine"]
    compare = runs.differences if same_machine else runs.distances
    runs.files_of(name, data, tmp_path)
    lines = compare(GOLDEN["cases"][name], runs.found_of(tmp_path))
    if lines:
        pytest.fail(f"{name}: " + "\n".join(lines), pytrace=False)
