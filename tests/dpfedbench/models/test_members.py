"""Model files: members, damage, and words of another vocabulary."""

import functools

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.models.lstm import Lstm
from dpfedbench.models.members import load_by_word, load_members, save_members

from .nets import layers, of


def language_model(words):
    """Return an LSTM of these words: row 0 of the embedding is that of unknown words,
    and its last row that of a record's beginning.
    """
    count = len(words) + 1
    build = functools.partial(
        Lstm, words=count, record=4, width=2, layers=1, tied=False
    )
    net = of(build, (4,), count)
    net.words = words
    return net


def weights_of(net, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(net.dimension).astype(np.float32)


def test_members_are_read_in_their_order(tmp_path):
    """Eleven members: "member11" comes before "member2" in the alphabet."""
    net = of(layers)
    members = [weights_of(net, seed) for seed in range(11)]
    save_members(tmp_path / "model.safetensors", net, members)
    loaded = load_members(tmp_path / "model.safetensors", net)
    assert [theta.tolist() for theta in loaded] == [theta.tolist() for theta in members]


def test_damaged_model_file_is_refused(tmp_path):
    net = of(layers)
    path = tmp_path / "model.safetensors"
    save_members(path, net, [weights_of(net, 0)])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(BenchError, match="its tensors differ from those that were"):
        load_members(path, net)


def test_language_model_goes_over_word_by_word(tmp_path):
    """Of "a" and "d" the second is unknown to the file, and keeps its own row."""
    before = language_model(("b", "a", "c"))
    after = language_model(("a", "d"))
    path = tmp_path / "model.safetensors"
    first = weights_of(before, 0)
    own = weights_of(after, 1)
    save_members(path, before, [first])
    loaded = after.tensors(torch.from_numpy(load_by_word(path, after, own)))
    file = before.tensors(torch.from_numpy(first))
    own = after.tensors(torch.from_numpy(own))
    embedding = [
        file["embedding"][0],
        file["embedding"][2],
        own["embedding"][2],
        file["embedding"][4],
    ]
    softmax = [file["softmax"][0], file["softmax"][2], own["softmax"][2]]
    assert torch.equal(loaded["embedding"], torch.stack(embedding))
    assert torch.equal(loaded["softmax"], torch.stack(softmax))
    assert torch.equal(loaded["input0"], file["input0"])
