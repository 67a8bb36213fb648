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


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("seeds: [0]\n# Prämie\n".encode("latin-1"), 2),
        ("seeds: [0]\n".encode("utf-16"), 1),
    ],
)
def test_yaml_file_that_is_not_utf8_is_the_users_to_correct(tmp_path, content, line):
    """The workflow does not make this file, so nobody may delete it."""
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(BenchError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path} is not UTF-8 text (line {line}, ")
    assert str(caught.value).endswith("): save it as UTF-8 in an editor")


def test_yaml_file_may_have_a_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: [2]\r\n")
    assert read_file(path) == {"a": 1, "b": [2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key a is already in line 1"),
        ("a:\n\tb: 1\n", "is not YAML: .*line 2"),
        ("", "expected keys at its top level"),
        ("a:\n  - {b: 1,\n     b: 2}\n", "line 3: the key b is already in line 2"),
        ("a: 1\nb: 010\nc: 3\nc: 4\n", "line 4: the key c is already in line 3"),
        ("a: &group\n  b: *group\n", "is not YAML: found unconstructable recursive"),
    ],
    ids=["key twice", "tab", "empty", "inner key twice", "two faults", "recursive"],
)
def test_yaml_file_with_a_fault_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
