"""The networks in plain torch, which differentiates them, in double precision.

The passes are compared with these functions. They share no code with the passes.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import dpkernels


def draw_parameters(network, seed=0):
    """Return random parameters [d], float64."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, shape in network.tensors.items():
        values = rng.standard_normal(shape)
        if name.endswith("scale"):
            values = 1 + 0.1 * values
        elif len(shape) == 1:
            values *= 0.1
        elif name.startswith(("block", "head", "conv1")):
            values /= math.sqrt(math.prod(shape[:-1]))
        else:
            values /= math.sqrt(math.prod(shape[1:]))
        parts.append(values.ravel())
    return np.concatenate(parts)


def split(network, theta):
    """Return a parameter vector as named tensors."""
    sizes = [math.prod(shape) for shape in network.tensors.values()]
    parts = zip(network.tensors.items(), theta.split(sizes), strict=True)
    return {name: part.view(shape) for (name, shape), part in parts}


def logits(network, theta, x):
    """Return the outputs of records x [n, ...] at theta [d], a tensor."""
    tensors = split(network, theta)
    if isinstance(network, dpkernels.LstmShape):
        return lstm_logits(network, tensors, torch.as_tensor(x))
    images = torch.as_tensor(
        np.asarray(x, np.float64) / (255 if x.dtype == "u1" else 1)
    )
    if isinstance(network, dpkernels.LinearShape):
        bias = tensors.get("linear.bias")
        return functional.linear(images.flatten(1), tensors["linear.weight"], bias)
    images = images.movedim(-1, 1)
    if isinstance(network, dpkernels.CnnShape):
        return cnn_logits(network, tensors, images)
    return conv4_logits(network, tensors, images)


def conv4_logits(network, tensors, images):
    for block in range(1, 5):
        weight, scale, shift = (
            tensors[f"block{block}.{name}"] for name in ("weight", "scale", "shift")
        )
        images = functional.conv2d(images, weight.permute(3, 2, 0, 1), padding=1)
        axes = (0, 2, 3) if network.normalisation == "batch" else (2, 3)
        centred = images - images.mean(axes, keepdim=True)
        variance = (centred**2).mean(axes, keepdim=True)
        images = centred / (variance + 1e-5).sqrt()
        images = images * scale[:, None, None] + shift[:, None, None]
        images = functional.max_pool2d(functional.relu(images), 2)
    features = images.permute(0, 2, 3, 1).flatten(1)
    return features @ tensors["head.weight"] + tensors["head.bias"]


def cnn_logits(network, tensors, images):
    x = (images - network.pixel_mean) / network.pixel_deviation
    first = tensors["conv1.weight"].permute(3, 2, 0, 1)
    x = functional.conv2d(x, first, tensors["conv1.bias"], stride=2, padding=3)
    x = functional.max_pool2d(functional.relu(x), 2, 1)
    second = tensors["conv2.weight"].permute(0, 3, 1, 2)
    x = functional.conv2d(x, second, tensors["conv2.bias"], stride=2)
    x = functional.max_pool2d(functional.relu(x), 2, 1)
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = functional.linear(x, tensors["fc1.weight"], tensors["fc1.bias"])
    x = functional.relu(x)
    return functional.linear(x, tensors["fc2.weight"], tensors["fc2.bias"])


def lstm_logits(network, tensors, words):
    """torch has two biases, whose sum is the model's bias."""
    width = network.width
    options = {"num_layers": network.layers, "batch_first": True}
    lstm = nn.LSTM(width, width, **options).double()
    weights = {}
    for layer in range(network.layers):
        weights[f"weight_ih_l{layer}"] = tensors[f"input{layer}"]
        weights[f"weight_hh_l{layer}"] = tensors[f"hidden{layer}"]
        weights[f"bias_ih_l{layer}"] = tensors[f"bias{layer}"]
        weights[f"bias_hh_l{layer}"] = torch.zeros(4 * width, dtype=torch.float64)
    before = functional.pad(words[:, :-1], (1, 0), value=network.outputs)
    inputs = tensors["embedding"][before]
    outputs, _ = torch.func.functional_call(lstm, weights, (inputs,))
    embedding = tensors["embedding"][: network.outputs]
    return outputs @ tensors.get("softmax", embedding).T


def record_losses(network, theta, x, y):
    """Return each record's loss [n], a tensor."""
    labels = torch.as_tensor(y)
    outputs = logits(network, theta, x)
    if labels.ndim == 1:
        return functional.cross_entropy(outputs, labels, reduction="none")
    losses = functional.cross_entropy(
        outputs.mT, labels, ignore_index=0, reduction="none"
    )
    return losses.mean(1)


def leaf_of(theta):
    return torch.from_numpy(theta.astype(np.float64)).requires_grad_()


def differentiate(network, theta, x, y):
    """Return each record's loss [n] and gradient [n, d], record by record."""
    leaf = leaf_of(theta)
    losses = []
    gradients = []
    for index in range(len(x)):
        record = slice(index, index + 1)
        (loss,) = record_losses(network, leaf, x[record], y[record])
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, leaf)[0].numpy())
    return np.array(losses), np.stack(gradients)


def differentiate_twice(network, theta, x, y, direction):
    """Return the mean loss, its gradient [d], and its Hessian times a direction [d]."""
    leaf = leaf_of(theta)
    loss = record_losses(network, leaf, x, y).mean()
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (product,) = torch.autograd.grad(gradient @ torch.from_numpy(direction), leaf)
    return loss.item(), gradient.detach().numpy(), product.numpy()


def differentiate_through_steps(network, theta, support, query, rates, second):
    """Return MAML's loss and gradient [d] of one task (Finn et al. 2017, equation 1)."""
    leaf = leaf_of(theta)
    adapted = leaf
    for rate in rates:
        loss = record_losses(network, adapted, *support).mean()
        (slope,) = torch.autograd.grad(loss, adapted, create_graph=second)
        adapted = adapted - torch.as_tensor(rate) * slope
    loss = record_losses(network, adapted, *query).mean()
    return loss.item(), torch.autograd.grad(loss, leaf)[0].numpy()


def relative_errors(rows, expected):
    """Return the distance of each row from the expected one, in its norm."""
    return np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)


def add_clipped(rows, limit):
    """Return the sum of rows clipped to the limit, and their norms."""
    norms = np.linalg.norm(rows, axis=1)
    factors = np.minimum(1, limit / np.maximum(norms, 1e-300))
    return (rows * factors[:, None]).sum(axis=0), norms
