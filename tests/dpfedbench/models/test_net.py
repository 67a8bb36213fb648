"""Modules over one flat vector: weights, names, and what may not be."""

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.net import Net
from dpfedbench.models.zoo.own_module import OwnModule

from .nets import Ordered, OwnLoss, Recurrent, cnn, conv4, layers, of


def test_named_tensors_round_trip_and_refuse_another_net():
    for net in (
        conv4(filters=4),
        of(lambda: layers(nn.GroupNorm(2, 4))),
        conv4(rates=(2, 0.1)),
    ):
        theta = net.initial(np.random.default_rng(0))
        tensors = net.tensors(torch.from_numpy(theta))
        assert np.array_equal(net.flatten(tensors), theta)
        assert sum(t.numel() for t in tensors.values()) == net.dimension == len(theta)
        assert {
            name: tuple(tensor.shape) for name, tensor in tensors.items()
        } == net.shapes
        with pytest.raises(BenchError, match="do not fit"):
            conv4(filters=5).flatten(tensors)


def test_conv4s_tensors_are_those_of_model_files():
    shapes = conv4((28, 28, 3), 4, 5).shapes
    assert list(shapes)[:4] == [
        "block1.weight",
        "block1.scale",
        "block1.shift",
        "block2.weight",
    ]
    assert (
        shapes["block1.weight"] == (3, 3, 3, 4)
        and shapes["head.weight"] == (4, 5)
        and shapes["head.bias"] == (5,)
    )


def test_initial_weights_are_the_modules_own_and_torchs_generator_stays():
    net = of(lambda: layers(nn.GroupNorm(2, 4)))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (
        net.initial(np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (
        np.array_equal(first, again)
        and not np.array_equal(first, other)
        and first.dtype == np.float32
    )
    assert torch.equal(before, torch.get_rng_state())
    bound = 1 / np.sqrt(2 * 9)
    weights = net.tensors(torch.from_numpy(first))["0.weight"]
    assert 0.5 * bound < weights.abs().max() <= bound


def test_learnt_rates_follow_the_weights():
    net = conv4(rates=(2, 0.1))
    assert net.dimension == net.weights + 2 * 14 == conv4().dimension + 28
    assert set(net.initial(np.random.default_rng(0))[net.weights :].tolist()) == {
        np.float32(0.1)
    }
    theta, x = torch.zeros(net.dimension), torch.zeros(2, 28, 28, 1)
    assert net.logits(theta, x).shape == (2, 5)


@pytest.mark.parametrize(
    ("old", "new"),
    [(conv4(ways=4), conv4(ways=3, rates=(2, 0.1))), (cnn(classes=4), cnn(classes=3))],
)
def test_a_fresh_head_keeps_the_body_bit_for_bit(old, new):
    theta = np.random.default_rng(0).standard_normal(old.dimension).astype(np.float32)
    found = new.tensors(torch.from_numpy(new.with_fresh_head(theta, old)))
    for name, tensor in old.tensors(torch.from_numpy(theta)).items():
        if name in old.head:
            assert not found[name].any()
        else:
            assert torch.equal(found[name], tensor)
    with pytest.raises(BenchError, match="do not fit"):
        conv4(filters=9).with_fresh_head(theta, old)


def test_bytes_are_pixels_of_0_to_1():
    net, theta = cnn(), torch.from_numpy(cnn().initial(np.random.default_rng(0)))
    x = np.random.default_rng(1).integers(0, 256, (2, 28, 28, 1), np.uint8)
    x.setflags(write=False)
    assert torch.equal(
        net.logits(theta, x), net.logits(theta, x.astype(np.float32) / np.float32(255))
    )


def test_a_module_has_its_own_loss_and_measure():
    net = of(OwnLoss)
    theta, x, y = (
        torch.zeros(net.dimension),
        np.zeros((4, 8, 8, 2), np.float32),
        np.zeros((4, 2), np.int64),
    )
    assert net.losses(theta, x, y).tolist() == pytest.approx([2 * np.log(3)] * 4)
    right, answers = net.correct(theta, x, y)
    assert right.tolist() == answers.tolist() == [2] * 4
    net.refuse_record_level()


class Batch(nn.Module):
    """Takes the mean over the batch, in a layer and with an operation that no kind
    tells.
    """

    def __init__(self):
        super().__init__()
        self.mixer, self.linear = Mixer(), nn.Linear(128, 3)

    def forward(self, x):
        return self.linear(self.mixer(x).flatten(1))


class Mixer(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Noisy(Mixer):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Counting(Mixer):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x


def with_layer(layer):
    def build():
        module = Batch()
        module.mixer = layer()
        return module

    return of(build)


FINE = {"track_running_stats": False}


@pytest.mark.parametrize(
    ("net", "layer"),
    [
        (of(lambda: layers(nn.BatchNorm2d(4, **FINE))), r"layer 1 \(BatchNorm2d\)"),
        (
            of(lambda: layers(nn.BatchNorm2d(4, affine=False, **FINE))),
            r"layer 1 \(BatchNorm2d\)",
        ),
        (conv4(), r"layer block1 \(_Block\)"),
        (of(Batch), r"layer mixer \(Mixer\)"),
    ],
    ids=["batch norm", "without weights", "functional", "by trying"],
)
def test_networks_that_mix_records_are_refused_for_records_by_the_layer(net, layer):
    net.check()
    with pytest.raises(
        BenchError, match=rf"mixes records in {layer}: .*GroupNorm"
    ) as refused:
        net.refuse_record_level()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "net",
    [
        cnn(),
        conv4(normalisation="record"),
        of(lambda: layers(nn.GroupNorm(1, 4))),
        of(Ordered),
        of(lambda: layers(nn.InstanceNorm2d(4, affine=True))),
        of(Recurrent, (6,), 7),
    ],
)
def test_networks_whose_records_stand_alone_are_taken(net):
    net.refuse_record_level()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            of(lambda: layers(nn.BatchNorm2d(4))),
            r"layer 1 \(BatchNorm2d\) keeps running statistics",
        ),
        (
            of(lambda: layers(nn.BatchNorm2d(4, affine=False))),
            r"layer 1 \(BatchNorm2d\) keeps running statistics",
        ),
        (
            of(lambda: layers(nn.InstanceNorm2d(4, track_running_stats=True))),
            r"InstanceNorm2d\) keeps running stat",
        ),
        (with_layer(Counting), r"mixer .*keeps running statistics"),
        (
            of(lambda: layers(nn.Dropout(0.1))),
            r"layer 1 \(Dropout\) draws random numbers",
        ),
        (with_layer(Noisy), r"mixer .*draws random numbers"),
        (
            of(layers, (9, 8, 2)),
            r"Sequential fails on records of shape \(9, 8, 2\): .*mat1 and mat2",
        ),
        (of(layers, (8, 8, 3)), r"fails on records of shape \(8, 8, 3\): .*channels"),
        (
            of(layers, outputs=4),
            r"gives an array \[3, 3\] for 3 records, not logits \[3, 4\]",
        ),
    ],
)
def test_networks_that_cannot_be_used_are_refused(net, message):
    with pytest.raises(BenchError, match=message) as refused:
        net.check()
    assert "\n" not in str(refused.value)
    if hasattr(net.module, "mixer") and hasattr(net.module.mixer, "seen"):
        assert net.module.mixer.seen == 0


def test_a_module_without_weights_is_refused():
    with pytest.raises(BenchError, match="Flatten has no parameters"):
        of(nn.Flatten)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's package beside the working directory."""
    (tmp_path / "mine_of_test").mkdir()
    (tmp_path / "mine_of_test" / "__init__.py").write_text("")
    (tmp_path / "mine_of_test" / "nets.py").write_text(
        "from torch import nn\nclass Small(nn.Module):\n    def __init__(self, width,"
        " outputs):\n        super().__init__()\n        self.body ="
        " nn.Sequential(nn.Flatten(), nn.Linear(128, width), nn.Linear(width,"
        " outputs))\n    def forward(self, x):\n        return self.body(x)\nnumber"
        " = 3\n"
    )
    (tmp_path / "mine_of_test" / "nets.py").write_text(
        (tmp_path / "mine_of_test" / "nets.py").read_text() + "class Failing(Small):\n"
        "    def forward(self, x):\n"
        "        return x.no_such_thing\n"
        "class Unmade(Small):\n"
        "    def __init__(self):\n"
        "        raise ValueError('not today')\n"
    )
    (tmp_path / "mine_of_test" / "broken.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)


def own_net(path, arguments):
    own = OwnModule.read(
        {"kind": "module", "module": path, "arguments": arguments}, "model"
    )
    return own.net(input_shape=(8, 8, 2), outputs=3)


def test_check_refuses_a_network_whose_forward_pass_fails(own):
    """The error is chained, so that a job's log has its traceback."""
    net = own_net("mine_of_test.nets:Failing", {"width": 4})
    with pytest.raises(
        BenchError, match=r"Failing fails on records .*: 'Tensor' object has"
    ) as refused:
        net.check()
    assert isinstance(refused.value.__cause__, AttributeError)


def test_a_model_of_text_without_losses_is_told_what_it_needs():
    """Logits for each word of a record are not logits of the record: the refusal says
    what a text's model defines.
    """

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 9)

        def forward(self, x):
            return self.embedding(x)

    net = Net(Words, input_shape=(5,), outputs=9)
    with pytest.raises(BenchError) as refused:
        net.check()
    assert (
        str(refused.value)
        == "model Words gives an array [3, 5, 9] for 3 records, not logits [3, 9]: a"
        " model of text has logits for each word, so it has to define losses and"
        " correct"
    )


def test_a_module_by_its_path(own):
    net = own_net("mine_of_test.nets:Small", {"width": 4})
    net.check()
    assert net.dimension == 129 * 4 + 5 * 3 and net.head == (
        "body.2.weight",
        "body.2.bias",
    )


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        (
            "mine_of_test.nets",
            {},
            'model.module is "mine_of_test.nets"',
        ),
        ("mine_of_test.none:Small", {}, "there is no module mine_of_test.none"),
        ("mine_of_test.nets:Large", {}, "mine_of_test.nets has no Large"),
        ("mine_of_test.nets:number", {}, "is not a torch.nn.Module"),
        ("mine_of_test.nets:Small", {}, "do not fit mine_of_test.nets:Small: .*width"),
        ("mine_of_test.nets:Unmade", {}, "do not fit .*: not today"),
        (
            "mine_of_test.nets:Small",
            {"width": 4, "depth": 2},
            "do not fit mine_of_test.nets:Small: .*depth",
        ),
    ],
)
def test_a_path_that_leads_to_no_module_is_refused(own, path, arguments, message):
    with pytest.raises(BenchError, match=message) as refused:
        own_net(path, arguments)
    assert "\n" not in str(refused.value)


def test_an_error_in_the_file_of_a_network_is_shown_as_it_is(own):
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as raised:
        own_net("mine_of_test.broken:Small", {})
    assert raised.traceback[-1].path.name == "broken.py"


@pytest.mark.parametrize(
    "change", [{"image_shape": (27, 28, 1)}, {"filters": 0}, {"ways": 1}]
)
def test_impossible_shapes_of_conv4_are_refused(change):
    with pytest.raises(BenchError):
        conv4(**({"image_shape": (28, 28, 1), "filters": 4, "ways": 5} | change))
