"""Automatic differentiation in double precision, which the compiled passes are compared
with.
"""

import numpy as np
import torch


def differentiate(net, theta, inputs, labels):
    """Return each record's loss [n] and gradient [n, d], by a pass of its own."""
    leaf = torch.from_numpy(theta.astype(np.float64)).requires_grad_()
    losses = []
    gradients = []
    for index in range(len(inputs)):
        record = slice(index, index + 1)
        loss = net.losses(leaf, inputs[record], labels[record]).sum()
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, leaf)[0].numpy())
    return np.array(losses), np.stack(gradients)


def differentiate_twice(net, theta, inputs, labels, direction):
    """Return the mean loss, its gradient [d], and its Hessian times a direction [d]."""
    leaf = torch.from_numpy(theta.astype(np.float64)).requires_grad_()
    loss = net.losses(leaf, inputs.astype(np.float64), labels).mean()
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    along = gradient @ torch.from_numpy(direction)
    (product,) = torch.autograd.grad(along, leaf)
    return loss.item(), gradient.detach().numpy(), product.numpy()


def relative_errors(rows, expected):
    """Return the distance of each row from the expected one, in its norm."""
    return np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)


def assert_no_bit_of_another_record(gradients, theta, images, labels, block=""):
    """Check that another third image changes the third gradient and no other bit."""
    before, after = np.empty((2, len(images), gradients.width(block)), np.float32)
    gradients.record_gradients(theta, images, labels, before, block=block)
    images[2] = 255 - images[2]
    gradients.record_gradients(theta, images, labels, after, block=block)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()
