"""Wiki-1600: Wikipedia articles, 1,600 words of each (Li et al. 2020, after Wiki-3029 of Arora et al. 2019).

From a local folder `wiki-3029` with a file TITLE.txt an article, or from wiki-3029.tar, .tar.gz or .tgz with these.
"""

from __future__ import annotations

from pathlib import Path

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.images import Progress
from dpfedbench.data.sources import ENVIRONMENT, find_local
from dpfedbench.data.tokens import RawTexts, cut_into_tasks, decoded, text_files, words_of
from dpfedbench.errors import BenchError

WORDS = 1600
_LARGEST, _TOTAL = 64 << 20, 1 << 30  # bytes of an article, and of all: much more than they have
SOURCE = "https://nlp.cs.princeton.edu/CURL/raw/ (A theoretical analysis of contrastive unsupervised representations)"

_NAMES = ("wiki-3029", "wiki-3029.tar", "wiki-3029.tar.gz", "wiki-3029.tgz")


def read_wiki(local: Path | None, download_dir: Path, progress: Progress | None = None) -> RawTexts:
    """Read the articles; those of fewer words are public text.

    Raises:
        BenchError: they are not there, one is empty or not UTF-8, or there are too few; says which.
    """
    path = find_local(local, ("wiki-3029",), _NAMES[1:]) or find_local(local, (), _NAMES)
    if path is None:
        place = f"{local}" if local else f"a folder named by {ENVIRONMENT}"
        raise BenchError(
            f"Wiki-3029 is missing: put {' or '.join(_NAMES[:2])} (TITLE.txt files) from {SOURCE} in {place}"
        )
    texts = []
    for title, content in sorted(text_files(path, largest=_LARGEST, total=_TOTAL)):
        words = words_of(decoded(content, f"{path}: {title}.txt"))
        if not words:
            raise BenchError(f"{path}: the article {title}.txt is empty: put an undamaged copy in its place")
        texts.append((title, words))
        if progress is not None and len(texts) % 500 == 0:
            progress("wiki-1600: reading the articles", len(texts), 3029)
    return cut_into_tasks(
        texts, words=WORDS, test=0.2, validation=0.1, called=f"{path}", versions={},
        public_text=f"the articles of fewer than {WORDS} words, which are no task", facts={"articles": len(texts)},
    )  # fmt: skip


ENTRIES = (
    DatasetEntry(name="wiki-1600", holds="texts", source=SOURCE, licence="CC BY-SA (Wikipedia)", read=read_wiki),
)
