"""A small data set of texts."""

import numpy as np

from dpfedbench.data.tokens import cut_into_tasks, load_texts

SECRET = "secret"
"""A word that is in one training task, often, and in no public text."""


def raw_texts(tasks=12, words=40, letters="abcdefghij"):
    """Return tasks of drawn words, and a short text, which is public.

    The first of ten letters is the most frequent.
    """
    rng = np.random.default_rng(0)
    shares = np.arange(10, 0, -1) / 55
    drawn = rng.choice(list(letters), (tasks, words + 3), p=shares)
    texts = [(f"task {task}", drawn[task].tolist()) for task in range(tasks)]
    options = {"words": words, "test": 0.1, "validation": 0.1, "called": "tiny texts"}
    owner = cut_into_tasks(texts, **options).splits.index("train")
    texts[owner][1][: words // 2] = [SECRET] * (words // 2)
    texts.append(("short", list(letters[0] + letters[:2] + letters[1:])))
    return cut_into_tasks(texts, **options)


def tiny_texts(folder, tasks=12, words=40, letters="abcdefghij"):
    """Save these texts as a prepared data set in a folder."""
    facts = {"name": "tiny", "recorded_sha256": None}
    raw_texts(tasks, words, letters).save(folder, facts)
    return load_texts(folder)
