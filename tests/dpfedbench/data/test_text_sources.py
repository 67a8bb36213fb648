"""Sources of texts: plays, articles, documentation strings and folders."""

import codecs
import os
import random
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.data import docstrings, image_folder, shakespeare, text_folder, tokens
from dpfedbench.data.registry import prepare
from dpfedbench.data.sources import Copy, Source, local_folder
from dpfedbench.data.wiki import read_wiki
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import check_folder
from dpfedbench.files import read_json

from .conftest import refusal, split_counts, write_files

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
TEXT = "word other " * 400


def test_play_is_split_into_roles() -> None:
    roles = {name: " ".join(words) for name, words in shakespeare.roles(PLAY).items()}
    assert roles == {
        "HAM": "who's there ? nay , answer me . a line after a direction is ham's .",
        "FIRST WITCH": "hail ! hail .",
        "LADY MACBETH": "out , out i say .",
    }


def write_plays(folder: Path, roles: int) -> None:
    text = "\n\n".join(f"R{'ABCDEF'[role]}.\n{TEXT}" for role in range(roles)).encode()
    write_files(folder, {"play0.txt": text, "play1.txt": text})


def test_plays_are_read_from_a_folder_a_zip_and_a_folder_of_roles(
    tmp_path: Path,
) -> None:
    """The last form is LEAF's: one file a role."""
    folder = tmp_path / "folder" / "shakespeare" / "plays"
    write_plays(folder, 6)
    raw = shakespeare.read_shakespeare(tmp_path / "folder", tmp_path)
    assert len(raw.tasks) == 12
    with zipfile.ZipFile(tmp_path / "plays.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"plays/{file.name}")
    zipped = shakespeare.read_shakespeare(tmp_path, tmp_path)
    assert raw.tasks == zipped.tasks
    assert raw.splits == zipped.splits
    names = [f"PLAY_ROLE{role}" for role in range(10)]
    write_files(
        tmp_path / "leaf" / "shakespeare" / "by_play_and_character",
        {f"{name}.txt": TEXT.encode() for name in names},
    )
    leaf = shakespeare.read_shakespeare(tmp_path / "leaf", tmp_path)
    assert [name for name, _ in leaf.tasks] == names


def test_plays_that_are_missing_or_bad_are_refused(tmp_path: Path) -> None:
    message = refusal(shakespeare.read_shakespeare, tmp_path, tmp_path)
    assert "no plays found: put plays/*.txt from https://www.gutenberg" in message
    folder = tmp_path / "shakespeare" / "plays"
    write_plays(folder, 1)
    message = refusal(shakespeare.read_shakespeare, tmp_path, tmp_path)
    assert "has 2 texts of at least 800 words" in message
    (folder / "play0.txt").write_bytes(b"R.\n\xff")
    message = refusal(shakespeare.read_shakespeare, tmp_path, tmp_path)
    assert "play0.txt is not UTF-8" in message


def test_real_plays_have_about_as_many_roles_as_published() -> None:
    folder = local_folder(None)
    if folder is None or not (folder / "shakespeare").is_dir():
        pytest.skip("the plays are not here: set DPFEDBENCH_DATA")
    assert 320 <= len(shakespeare.read_shakespeare(folder, folder).tasks) <= 345


def test_articles_are_read_from_a_folder_and_a_tar(tmp_path: Path) -> None:
    """A short article is public text."""
    assert "Wiki-3029 is missing: put wiki-3029" in refusal(
        read_wiki, tmp_path, tmp_path
    )
    articles = {
        f"Title {number}.txt": f"w{number} ".encode() * 1700 for number in range(10)
    }
    folder = tmp_path / "wiki-3029"
    write_files(folder, articles | {"Short.txt": b"few words"})
    raw = read_wiki(tmp_path, tmp_path)
    assert len(raw.tasks) == 10
    assert raw.public["few"] == 1
    assert raw.facts["articles"] == 11
    (tmp_path / "tar").mkdir()
    path = tmp_path / "tar" / "wiki-3029.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "articles")
    assert read_wiki(path.parent, tmp_path).tasks == raw.tasks
    (folder / "Empty.txt").write_text("")
    assert "Empty.txt is damaged" in refusal(read_wiki, tmp_path, tmp_path)
    path.write_bytes(b"no archive")
    message = refusal(read_wiki, path.parent, tmp_path)
    assert "is damaged or not Wiki-3029's" in message


SOURCE_CODE = '''"""Module."""
class A:
    """Class."""
    def f(self):
        """Method."""
        "no docstring"
x = "\\d"
'''


def test_documentation_of_a_source_is_its_docstrings() -> None:
    assert docstrings.documentation(SOURCE_CODE) == "Module.\nClass.\nMethod."


def test_modules_that_repeat_another_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docstrings, "WORDS", 20)

    def words(letter: str, count: int) -> list[str]:
        return [f"{letter}{index}" for index in range(count)]

    texts = [
        ("first", words("a", 40)),
        ("copy", words("a", 20) + words("b", 20)),
        ("different", words("c", 30)),
        ("little shared", words("a", 10) + words("d", 40)),
        ("short copy", words("a", 10)),
    ]
    names = [name for name, _ in docstrings._apart(iter(texts))]
    assert names == ["first", "different", "little shared", "short copy"]


def test_modules_are_without_tests_and_those_of_one_python_version() -> None:
    """numpy installs distutils on Python 3.11 alone."""
    names = [name for name, _ in docstrings.modules()]
    assert len(names) == len(set(names))
    assert "numpy.linalg._linalg" in names
    assert not [name for name in names if ".tests." in name or ".distutils." in name]


# Folders of texts


def read_folder(folder: Path, words: int = 9, **options: Any) -> Any:
    return text_folder.read(None, folder, folder=str(folder), words=words, **options)


def test_text_folder_is_split_into_tasks(tmp_path: Path) -> None:
    texts = {f"author {n}.txt": f"w{n} ".encode() * 30 for n in range(10)}
    write_files(tmp_path, texts)
    assert split_counts(read_folder(tmp_path, words=20, test=0.2)) == [7, 1, 2]
    assert text_folder.TextFolderOptions.read({"folder": "x", "words": 3}).test == 0.1
    with pytest.raises(BenchError, match=r"the folder of texts .*none does not exist"):
        text_folder.read(tmp_path, tmp_path, folder="none", words=20)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1 << 20])
def test_words_of_a_file_do_not_depend_on_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """A chunk may end in a letter of several bytes, in a word, before an apostrophe, or
    after a byte order mark.
    """
    monkeypatch.setattr(tokens, "_PIECE", chunk)
    path = tmp_path / "a.txt"
    letters = [*"aB'’7  \n\u2003\x85éΣ漢-😀İ", "ΑΣ ", "o'er "]
    for seed in range(30):
        rng = random.Random(seed)
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(60)))
        path.write_bytes((b"\xef\xbb\xbf" if seed % 2 else b"") + text.encode())
        assert list(tokens.words_in(path)) == tokens.words_of(text)


def test_text_folder_takes_no_more_memory_than_its_tasks(tmp_path: Path) -> None:
    """Twenty million bytes of words, of which a task uses a hundred."""
    texts = {f"{name}.txt": b"ab cd " * 50 for name in "bcd"}
    write_files(tmp_path, texts | {"a.txt": b"ab cd " * 3_500_000})
    tracemalloc.start()
    try:
        raw = read_folder(tmp_path, words=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(words) for _, words in raw.tasks] == [100] * 4
    assert peak < 30e6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"words and \0 more", "a.txt is not a text file, since it has a NUL"),
        (b"word " * 5 + b"caf\xe9 x", "invalid continuation byte at byte 28"),
        (b"word " * 5 + b"caf\xc3", "unexpected end of data at byte 28"),
        (b"a" * 2000, "it has 2,000 characters without a space"),
    ],
)
@pytest.mark.parametrize("chunk", [4, 1 << 20])
def test_text_folder_refuses_files_that_are_no_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    message: str,
    chunk: int,
) -> None:
    monkeypatch.setattr(tokens, "_PIECE", chunk)
    monkeypatch.setattr(tokens, "_LONGEST", 1999)
    write_files(tmp_path, {"a.txt": content, "b.txt": b"words " * 9})
    assert message in refusal(read_folder, tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "a.txt cannot be read (a pipe or device, where a file belongs)"),
        (os.mkdir, "a.txt is a folder, where a file belongs"),
        (
            lambda path: path.symlink_to(path.name),
            "a.txt is a link that leads back to itself",
        ),
    ],
)
def test_text_folder_refuses_pipes_folders_and_loops(
    tmp_path: Path, make: Any, message: str
) -> None:
    """Opening a pipe would wait for ever."""
    make(tmp_path / "a.txt")
    assert message in refusal(read_folder, tmp_path)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Make a folder that all users can read, and run the test as another user than
    root.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.seteuid(0)


def test_files_without_permission_are_not_called_damaged(unprivileged: Path) -> None:
    import torchvision.datasets  # noqa: F401

    root = unprivileged
    files = {
        "texts/a.txt": b"a b",
        "shut/x/a.png": b"",
        "mnist/train-images-idx3-ubyte.gz": b"1",
        "plays.zip": b"PK",
    }
    write_files(root, files)
    for name in (*files, "shut"):
        (root / name).chmod(0)
    codecs.lookup("utf-8-sig")
    shut = root / "shut"
    pictures = {"size": 8, "channels": 1, "test_images": 1}
    calls = {
        "texts/a.txt": lambda: read_folder(root / "texts"),
        "shut": lambda: read_folder(shut),
        "shut:": lambda: image_folder.read(None, root, folder=str(shut), **pictures),
        "shut/": lambda: Source(name="x", folders=("shut",)).find(root, "a.zip"),
        "mnist": lambda: prepare("mnist", root / "out", root),
        "plays.zip": lambda: Copy(Source(name="x"), root / "plays.zip").files,
        "shut: make": lambda: check_folder(str(shut)),
        "shut/format.json": lambda: read_json(shut / "format.json"),
    }
    os.seteuid(65534)
    for name, call in calls.items():
        with pytest.raises(BenchError, match=rf"^no permission to read .*/{name}"):
            call()
