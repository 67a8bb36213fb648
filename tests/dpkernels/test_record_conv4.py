"""Conv-4 gradients of single records in single precision.

tests/dpfedbench/models/test_gradients.py compares them in double precision.
"""

import numpy as np

from dpkernels.record_conv4 import RecordConv4
from tests.dpfedbench.models.nets import conv4
from tests.dpkernels.autograd import (
    assert_no_bit_of_another_record,
    differentiate,
    relative_errors,
)

NET = conv4(normalisation="record")


def make_records():
    """Return weights, four images and their labels."""
    rng = np.random.default_rng(0)
    theta = NET.initial(rng) + 0.1 * rng.standard_normal(NET.dimension)
    images = rng.random((4, 28, 28, 1), dtype=np.float32)
    return theta.astype(np.float32), images, rng.integers(0, 5, 4)


def test_record_conv4_gradients_equal_autograd():
    records = make_records()
    rows = np.empty((4, NET.dimension), np.float32)
    RecordConv4(NET).record_gradients(*records, rows)
    _, expected = differentiate(NET, *records)
    assert relative_errors(rows, expected).max() < 1e-5


def test_record_conv4_gradient_has_no_bit_of_another_record():
    assert_no_bit_of_another_record(RecordConv4(NET), *make_records())
