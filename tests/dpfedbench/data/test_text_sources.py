"""Sources of texts: plays, articles, documentation strings and folders."""

import pytest

from dpfedbench.data import docstrings, shakespeare, text_folder
from dpfedbench.data.sources import local_folder
from dpfedbench.data.wiki import read_wiki

from .conftest import refusal, split_counts, write_files, write_tar, write_zip

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


def test_play_is_split_into_roles():
    roles = {name: " ".join(words) for name, words in shakespeare.roles(PLAY).items()}
    assert roles == {
        "HAM": "who's there ? nay , answer me . a line after a direction is ham's .",
        "FIRST WITCH": "hail ! hail .",
        "LADY MACBETH": "out , out i say .",
    }


def test_plays_are_read_from_a_zip_and_a_folder_of_roles(tmp_path):
    """The second form is LEAF's: one file a role."""
    roles = [f"R{letter}.\n{TEXT}" for letter in "ABCDEF"]
    play = "\n\n".join(roles).encode()
    plays = {"plays/play0.txt": play, "plays/play1.txt": play}
    write_zip(tmp_path / "plays.zip", plays)
    assert len(shakespeare.read_shakespeare(tmp_path, tmp_path).tasks) == 12
    names = [f"PLAY_ROLE{role}" for role in range(10)]
    leaf_folder = tmp_path / "leaf" / "shakespeare" / "by_play_and_character"
    write_files(leaf_folder, {f"{name}.txt": TEXT.encode() for name in names})
    leaf = shakespeare.read_shakespeare(tmp_path / "leaf", tmp_path)
    assert [name for name, _ in leaf.tasks] == names


def test_real_plays_have_about_as_many_roles_as_published():
    folder = local_folder(None)
    if folder is None or not (folder / "shakespeare").is_dir():
        pytest.skip("the plays are not here: set DPFEDBENCH_DATA")
    assert 320 <= len(shakespeare.read_shakespeare(folder, folder).tasks) <= 345


def test_articles_are_read_from_a_tar(tmp_path):
    """A short article is public text."""
    articles = {f"Title {n}.txt": f"w{n} ".encode() * 1700 for n in range(10)}
    articles["Short.txt"] = b"few words"
    members = {f"articles/{name}": text for name, text in articles.items()}
    write_tar(tmp_path / "wiki-3029.tar.gz", members)
    raw = read_wiki(tmp_path, tmp_path)
    assert len(raw.tasks) == 10
    assert raw.public["few"] == 1


def test_modules_that_repeat_another_are_left_out(monkeypatch):
    monkeypatch.setattr(docstrings, "WORDS", 20)

    def words(letter, count):
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


def read_folder(folder, words=9, **options):
    return text_folder.read(None, folder, folder=str(folder), words=words, **options)


def test_text_folder_is_split_into_tasks(tmp_path):
    texts = {f"author {n}.txt": f"w{n} ".encode() * 30 for n in range(10)}
    write_files(tmp_path, texts)
    assert split_counts(read_folder(tmp_path, words=20, test=0.2)) == [7, 1, 2]


def test_text_folder_refuses_files_that_are_no_text(tmp_path):
    write_files(tmp_path, {"a.txt": b"words and \0 more", "b.txt": b"words " * 9})
    assert "a.txt is not a text file" in refusal(read_folder, tmp_path)
