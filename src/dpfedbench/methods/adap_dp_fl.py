"""Adap DP-FL (Fu, Chen and Han 2022, Algorithm 1): record-level privacy, threshold and
noise that adapt.

Each round, each client

1. takes a Poisson lot of its records (line 7) and their gradients (line 8),
2. clips each to its C in L2 norm over all weights (line 11), sums them and adds N(0,
   z^2 C^2 I) (line 12),
3. takes a step of its own optimiser along the sum / L (line 14; Section V: Adam),
4. sets its next C to alpha times a noised mean norm (eq. 6 to 8), read in two ways: the
   scalar query is a release of its own, which the paper does not count
   (`noised-mean-norm`); the norm of the released vector is post-processing
   (`norm-of-release`);

the server averages the models (line 23) and multiplies z by beta after three falls in a
row of a public validation loss (line 24). A client stops before its budget is exceeded
(line 17 stops after); all are alike, so all stop.
"""

from dpfedbench.methods.over_lots import OverLots
from dpsum.accounting.claims import WHOLE_ORDERS


class AdapDpFl(OverLots):
    """Each client takes the private sums, over its records, with a threshold of its
    own.
    """

    name = "adap-dp-fl"
    title = "Adap DP-FL"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}
