"""DP-AGR (DP-FedMeta, Algorithms 1 and 2): user-level privacy against everyone who gets
the meta-model.

Each round the server

1. takes a cohort of L clients (Algorithm 2, line 3; one pass: no client twice),
2. gets their MAML query gradients (Algorithm 1),
3. clips each to C in L2 norm over all weights (line 7), sums them and adds N(0, z^2 C^2
   I) (eq. 7, line 8),
4. moves the meta-model along the sum / L (line 9),
5. sets the next C from the norms of the sums released so far (eq. 2): a percentile over
   a window of W rounds.

The server is trusted; what it releases is step 3's noisy sum. Text and released code
differ in step 5, so the rule is a value of the configuration (`parts.clipping`).
"""

from dpfedbench.methods.over_clients import OverClients
from dpfedbench.parts.client_updates.maml import Maml
from dpsum.accounting.claims import POISSON_MOMENTS


class DpAgr(OverClients):
    """One private sum a round, over the cohort's query gradients."""

    name = "dp-agr"
    title = "DP-AGR"
    paper = "dp-fedmeta"
    claims = {"one-pass": POISSON_MOMENTS}

    # The released code takes the percentile of the clients' raw norms.
    released = {"clipping": {"kind": "percentile-of-raw-norms"}}

    client_update: Maml = Maml()
