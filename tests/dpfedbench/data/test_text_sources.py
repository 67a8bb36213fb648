"""Where texts are from: plays, articles and documentation strings."""

import codecs
import io
import os
import random
import re
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.data import docstrings, shakespeare, text_folder, tokens, wiki
from dpfedbench.data.sources import local_folder
from dpfedbench.errors import BenchError

PLAY = """A PLAY

by Nobody

ACT I.

SCENE I. A place.

[Enter HAM.]

Ham.
Who's there?
Nay, answer me.

[Exit.]

A line after a direction is Ham's.

FIRST WITCH
Hail! [Aside] Hail.

Scene II. Another place.

Nobody says this.

LADY MACBETH. \n  Out, out (_to the spot_) I say.
"""


def test_roles_of_a_play() -> None:
    found = shakespeare.roles(PLAY)
    assert set(found) == {"HAM", "FIRST WITCH", "LADY MACBETH"}
    assert (
        " ".join(found["HAM"])
        == "who's there ? nay , answer me . a line after a direction is ham's ."
    )
    assert found["FIRST WITCH"] == ["hail", "!", "hail", "."]
    assert " ".join(found["LADY MACBETH"]) == "out , out i say ."


def _plays(folder: Path, roles: int) -> None:
    for play in range(2):
        text = "\n\n".join(
            f"R{'ABCDEFGHIJKL'[i]}.\n{'word other ' * 400}" for i in range(roles)
        )
        (folder / f"play{play}.txt").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"play{play}.txt").write_text(text)


def test_plays_in_a_folder_and_in_a_zip_are_the_same(tmp_path: Path) -> None:
    _plays(tmp_path / "shakespeare" / "plays", 6)
    first = shakespeare.read_shakespeare(tmp_path, tmp_path)
    with zipfile.ZipFile(tmp_path / "plays.zip", "w") as archive:
        for file in (tmp_path / "shakespeare" / "plays").iterdir():
            archive.write(file, f"plays/{file.name}")
            file.unlink()
        (tmp_path / "shakespeare" / "plays").rmdir()
    second = shakespeare.read_shakespeare(tmp_path, tmp_path)
    assert (
        first.tasks == second.tasks
        and first.splits == second.splits
        and len(first.tasks) == 12
    )


def test_leafs_form_is_a_file_a_role(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare" / "by_play_and_character"
    folder.mkdir(parents=True)
    for role in range(10):
        (folder / f"PLAY_ROLE{role}.txt").write_text("word other " * 400)
    found = shakespeare.read_shakespeare(tmp_path, tmp_path)
    assert [name for name, _ in found.tasks] == sorted(
        f"PLAY_ROLE{role}" for role in range(10)
    )


def test_plays_that_are_missing_or_bad(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError,
        match=r"no plays found: put plays/\*\.txt from https://www\.gutenberg",
    ):
        shakespeare.read_shakespeare(tmp_path, tmp_path)
    _plays(tmp_path / "shakespeare" / "plays", 1)
    with pytest.raises(BenchError, match="has 2 texts of at least 800 words"):
        shakespeare.read_shakespeare(tmp_path, tmp_path)
    (tmp_path / "shakespeare" / "plays" / "play0.txt").write_bytes(b"R.\n\xff")
    with pytest.raises(BenchError, match=r"play0\.txt is not UTF-8"):
        shakespeare.read_shakespeare(tmp_path, tmp_path)


def test_the_real_plays_have_about_as_many_roles_as_were_published() -> None:
    folder = local_folder(None)
    if folder is None or not (folder / "shakespeare").is_dir():
        pytest.skip("the plays are not here: set DPFEDBENCH_DATA")
    assert 320 <= len(shakespeare.read_shakespeare(folder, folder).tasks) <= 345


def test_articles_in_a_folder_and_in_a_tar(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError, match=r"Wiki-3029 is missing: put wiki-3029 or wiki-3029\.tar"
    ):
        wiki.read_wiki(tmp_path, tmp_path)
    folder = tmp_path / "wiki-3029"
    folder.mkdir()
    for number in range(10):
        (folder / f"Title {number}.txt").write_text(f"w{number} " * 1700)
    (folder / "Short.txt").write_text("few words")
    first = wiki.read_wiki(tmp_path, tmp_path)
    assert (
        len(first.tasks) == 10
        and first.public["few"] == 1
        and first.facts["articles"] == 11
    )
    tarred = tmp_path / "other"
    tarred.mkdir()
    with tarfile.open(tarred / "wiki-3029.tar.gz", "w:gz") as archive:
        archive.add(folder, "articles")
    assert wiki.read_wiki(tarred, tmp_path).tasks == first.tasks
    (folder / "Empty.txt").write_text("")
    with pytest.raises(BenchError, match=r"Empty\.txt is damaged .*it is empty"):
        wiki.read_wiki(tmp_path, tmp_path)
    (tarred / "wiki-3029.tar.gz").write_bytes(io.BytesIO(b"no archive").getvalue())
    with pytest.raises(BenchError, match="is damaged or not Wiki-3029's"):
        wiki.read_wiki(tarred, tmp_path)


def test_documentation_strings_of_a_source() -> None:
    source = (
        '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n       '
        ' """Method."""\n'
    )
    source += '        "no docstring"\nx = "\\d"\n'
    assert docstrings.documentation(source) == "Module.\nClass.\nMethod."


def test_a_module_that_repeats_another_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docstrings, "WORDS", 20)
    first = [f"a{i}" for i in range(40)]
    texts = [
        ("first", first),
        ("copy", first[:20] + [f"b{i}" for i in range(20)]),
        ("own", [f"c{i}" for i in range(30)]),
    ]
    texts += [
        ("little shared", first[:10] + [f"d{i}" for i in range(40)]),
        ("short copy", first[:10]),
    ]
    assert [name for name, _ in docstrings._apart(iter(texts))] == [
        "first",
        "own",
        "little shared",
        "short copy",
    ]


def test_modules_are_named_and_tests_are_left_out() -> None:
    names = [name for name, _ in docstrings.modules()]
    assert len(names) == len(set(names)) and "numpy.linalg._linalg" in names
    assert not [name for name in names if ".tests." in name]


def test_a_folder_of_ones_own_texts(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"author {number}.txt").write_text(f"w{number} " * 30)
    found = text_folder.read(tmp_path, tmp_path, folder=".", words=20, test=0.2)
    assert [found.splits.count(split) for split in ("train", "validation", "test")] == [
        7,
        1,
        2,
    ]
    assert text_folder.TextFolderOptions.read({"folder": "x", "words": 3}).test == 0.1
    with pytest.raises(BenchError, match=r"the folder of texts .*none is not there"):
        text_folder.read(tmp_path, tmp_path, folder="none", words=20)


def test_what_only_one_python_gets_is_no_task() -> None:
    """numpy installs distutils on Python 3.11 alone; with it the words would differ
    between the two.
    """
    names = [name for name, _ in docstrings.modules()]
    assert "numpy.linalg._linalg" in names and not any(
        ".distutils." in name for name in names
    )


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 1 << 20])
def test_a_file_in_pieces_has_the_words_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Wherever a piece ends: in a letter of several bytes, in a word, before an
    apostrophe, after a mark of order.
    """
    monkeypatch.setattr(tokens, "_PIECE", piece)
    path = tmp_path / "a.txt"
    letters = [
        "a",
        "B",
        "'",
        "’",
        "7",
        " ",
        " ",
        "\n",
        "\u2003",
        "\x85",
        "é",
        "Σ",
        "ΑΣ ",
        "漢",
        "-",
        "😀",
        "İ",
        "o'er ",
    ]
    for seed in range(30):
        rng = random.Random(seed)
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(60)))
        path.write_bytes((b"\xef\xbb\xbf" if seed % 2 else b"") + text.encode())
        assert list(tokens.words_in(path)) == tokens.words_of(text)


def test_a_folder_of_texts_takes_no_more_memory_than_its_tasks(tmp_path: Path) -> None:
    """Twenty million bytes of words, of which a task has a hundred."""
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_bytes(
            b"ab cd " * (3_500_000 if name == "a" else 50)
        )
    tracemalloc.start()
    try:
        found = text_folder.read(None, tmp_path, folder=str(tmp_path), words=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(words) for _, words in found.tasks] == [100] * 4 and peak < 30e6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"words and \0 more", "a.txt is no text, it holds a NUL: take it away"),
        (
            b"word " * 5 + b"caf\xe9 x",
            "a.txt is not UTF-8 (invalid continuation byte at byte 28): convert it",
        ),
        (
            b"word " * 5 + b"caf\xc3",
            "a.txt is not UTF-8 (unexpected end of data at byte 28): convert it",
        ),
        (
            b"a" * 2000,
            "a.txt is no text, it has 2,000 letters without a space: take it away",
        ),
    ],
)
@pytest.mark.parametrize("piece", [4, 1 << 20])
def test_what_is_no_text_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    said: str,
    piece: int,
) -> None:
    monkeypatch.setattr(tokens, "_PIECE", piece)
    monkeypatch.setattr(tokens, "_LONGEST", 1999)
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    (tmp_path / "b.txt").write_text("words " * 9)
    with pytest.raises(BenchError, match=re.escape(said)):
        text_folder.read(None, tmp_path, folder=str(tmp_path), words=9)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "a.txt cannot be read (a pipe or device, where a file belongs)"),
        (os.mkdir, "a.txt is a folder, where a file belongs"),
        (
            lambda path: path.symlink_to(path.name),
            "a.txt is a link that leads back to itself",
        ),
    ],
)
def test_what_is_no_file_is_one_line(tmp_path: Path, make: Any, said: str) -> None:
    """A pipe that is opened is waited for, for ever."""
    make(tmp_path / "a.txt")
    with pytest.raises(BenchError, match=re.escape(said)):
        text_folder.read(None, tmp_path, folder=str(tmp_path), words=9)


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder whose files another than root cannot read; the test is another
    meanwhile.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.seteuid(0)


def test_what_may_not_be_read_is_not_called_damaged(nobody: Path) -> None:
    import torchvision.datasets  # noqa: F401

    from dpfedbench.data import image_folder, sources
    from dpfedbench.data.registry import prepare
    from dpfedbench.experiments.configuration import check_folder
    from dpfedbench.files import read_json

    places = {
        "texts/a.txt": b"a b",
        "shut/x/a.png": b"",
        "mnist/train-images-idx3-ubyte.gz": b"1",
        "plays.zip": b"PK",
    }
    for name, content in places.items():
        path = nobody / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0)
    (nobody / "shut").chmod(0)
    codecs.lookup("utf-8-sig")
    os.seteuid(65534)
    with pytest.raises(
        BenchError, match=r"^no permission to read .*/texts/a.txt: make it readable$"
    ):
        text_folder.read(nobody, nobody, folder="texts", words=3)
    with pytest.raises(
        BenchError, match=r"^no permission to read .*/shut: make it readable$"
    ):
        text_folder.read(nobody, nobody, folder="shut", words=3)
    with pytest.raises(
        BenchError, match=r"^no permission to read .*/shut: make it readable$"
    ):
        image_folder.read(
            nobody, nobody, folder="shut", size=8, channels=1, test_images=1
        )
    with pytest.raises(BenchError, match=r"^no permission to read .*/shut/"):
        sources.Source(name="x", folders=("shut",)).find(nobody, "a.zip")
    with pytest.raises(
        BenchError, match=r"^no permission to read .*: make it readable$"
    ):
        prepare("mnist", nobody / "out", nobody)
    with pytest.raises(
        BenchError, match=r"^no permission to read .*: make it readable$"
    ):
        _ = sources.Copy(sources.Source(name="x"), nobody / "plays.zip").files
    with pytest.raises(
        BenchError, match=r"^no permission to read .*/shut: make it readable$"
    ):
        check_folder(str(nobody / "shut"))
    with pytest.raises(
        BenchError,
        match=r"^no permission to read .*/shut/format.json: make it readable$",
    ):
        read_json(nobody / "shut" / "format.json")
