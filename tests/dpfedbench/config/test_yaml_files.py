"""Numbers that YAML 1.1 reads as something else than they show, in every file and
option of a configuration.
"""

import pytest

from dpfedbench.config.yaml_files import check_config_option, read_file
from dpfedbench.errors import BenchError

# Read as 8, 90, 90.5, 16, 2, 1000, 8 by YAML 1.1; text, or 8, by YAML 1.2; Arabic and
# full-width digits by Python's int().
ODD = ("010", "1:30", "1:30.5", "0x10", "0b10", "1_000", "0o10", "08", "-010", "1_0.5")
DIGITS = ("１２", "٣", "1２")
PLAIN = ("10", "-3", "+5", "0", "0.5", ".5", "5.", "1e-6", "1.5e+3", "1E5", ".inf")
TEXT = ('"010"', "'1:30'", "1:30 hours", "abc", "0xyz", "v1.2.3", "1-2", '"１２"')
FILES = ("a:\n  b: {}\n", "a: {{b: [1,\n {}]}}\n", "a: &one\n  b: {}\nc: *one\n")


@pytest.mark.parametrize("value", ODD + DIGITS)
def test_yaml_number_that_is_not_plain_decimal_is_refused(tmp_path, value):
    """Snakemake reads 010 as 10, 1_000 as 1000 and full-width digits by int()."""
    path = tmp_path / "own.yaml"
    for text in FILES:
        path.write_text(text.format(value), encoding="utf-8")
        with pytest.raises(BenchError) as caught:
            read_file(path)
        assert str(caught.value).startswith(f"{path}, line 2: {value} is not a plain")
    for words in ([f"seed={value}"], ["a=1", f"run={{clients: {{count: {value}}}}}"]):
        with pytest.raises(BenchError, match=r"^--config (seed|run): .* not a plain"):
            check_config_option(words)


def test_yaml_plain_numbers_and_texts_are_taken(tmp_path):
    path = tmp_path / "own.yaml"
    lines = [f"  - {value}\n" for value in PLAIN + TEXT]
    path.write_text(f"a:\n{''.join(lines)}", encoding="utf-8")
    read_file(path)
    check_config_option([f"a={value}" for value in (*PLAIN, *TEXT, "", "{", "no")])
    check_config_option(["a=2026-11-26", "b={public: no, tasks: 5}"])
