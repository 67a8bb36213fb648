"""Wiki-1600: Wikipedia articles, 1,600 words each (Li et al. 2020).

It follows Wiki-3029 of Arora et al. 2019. The local folder `wiki-3029` holds one file
TITLE.txt per article, or wiki-3029.tar, .tar.gz or .tgz with these files.
"""

from __future__ import annotations

from pathlib import Path

from dpfedbench.data.images import with_progress
from dpfedbench.data.sources import Source
from dpfedbench.data.tokens import RawTexts, cut_into_tasks, texts_of, words_of
from dpfedbench.errors import BenchError

WORDS = 1600
SOURCE = (
    "https://nlp.cs.princeton.edu/CURL/raw/ (A theoretical analysis of contrastive"
    " unsupervised representations)"
)

_ARTICLES = Source(
    name="Wiki-3029",
    folders=("wiki-3029",),
    parts={
        "the articles": (
            "wiki-3029.tar",
            "wiki-3029.tar.gz",
            "wiki-3029.tgz",
            "wiki-3029",
        )
    },
    check="UTF-8; enough articles of 1,600 words",
    downloaded=False,
)
PLACES = {"wiki-1600": _ARTICLES}


def read_wiki(local: Path | None, download_dir: Path) -> RawTexts:
    """Read the articles. Articles with fewer words are public text.

    Raises:
        BenchError: the articles are missing, one is not UTF-8, or there are too few.
    """
    copy = _ARTICLES.find_whole(local)
    if copy is None:
        raise BenchError(
            f"Wiki-3029 is missing: put wiki-3029 or wiki-3029.tar (TITLE.txt files)"
            f" from {SOURCE} in {_ARTICLES.place}"
        )
    texts = [
        (title, words_of(text))
        for title, text in with_progress(
            texts_of(copy), "wiki-1600: reading the articles"
        )
    ]
    return cut_into_tasks(
        texts,
        words=WORDS,
        test=0.2,
        validation=0.1,
        called=f"{copy.path}",
    )


READERS = {"wiki-1600": read_wiki}
