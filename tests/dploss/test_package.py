"""The package as a whole: its example, and its imports."""

import textwrap

import dploss
from tests.dpsum.test_light import IMPORTS, printed_names


def test_example_of_the_package_prints_what_it_says(capsys):
    _, example = dploss.__doc__.split("one unit in a hundred:\n")
    code, after = example.split("prints `")
    exec(textwrap.dedent(code), {})
    assert capsys.readouterr().out.strip() == after.partition("`")[0]


def test_dploss_imports_numpy_and_scipy_alone():
    code = IMPORTS.replace(', "dpsum"}', "}").replace("dpsum", "dploss")
    assert "dploss.fine_brackets" in printed_names(code)
