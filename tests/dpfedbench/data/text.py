"""A small data set of texts: tasks with words of their own, and some that all
have.
"""

from pathlib import Path

import numpy as np

from dpfedbench.data.tokens import RawTexts, TextDataset, cut_into_tasks, load_texts

SECRET = "secret"
"""A word that is in one training task, often, and in no public text."""


def raw_texts(
    tasks: int = 12, words: int = 40, letters: str = "abcdefghij"
) -> RawTexts:
    """Return tasks of drawn words, and a short text, which is public.

    The first of ten letters is the most frequent.
    """
    rng = np.random.default_rng(0)
    common = np.array(list(letters))
    texts = [
        (
            f"task {i}",
            rng.choice(common, words + 3, p=np.arange(10, 0, -1) / 55).tolist(),
        )
        for i in range(tasks)
    ]
    trained = cut_into_tasks(
        texts,
        words=words,
        test=0.1,
        validation=0.1,
        called="x",
    )
    owner = trained.splits.index("train")
    texts[owner][1][: words // 2] = [SECRET] * (words // 2)
    texts.append(("short", list(letters[0] + letters[:2] + letters[1:])))
    return cut_into_tasks(
        texts, words=words, test=0.1, validation=0.1, called="tiny texts"
    )


def tiny_texts(
    folder: Path, tasks: int = 12, words: int = 40, letters: str = "abcdefghij"
) -> TextDataset:
    """Save these texts as a prepared data set in a folder."""
    raw_texts(tasks, words, letters).save(
        folder, {"name": "tiny", "recorded_sha256": None}
    )
    return load_texts(folder)
