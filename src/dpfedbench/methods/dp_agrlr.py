"""DP-AGRLR (DP-FedMeta, Algorithms 2 and 3): two-fold privacy, of a client's examples
against the server as well.

Each round the server takes a cohort of L clients and each of them (Algorithm 3)

1. computes z_0 from (epsilon_0, delta_0) (line 4);
2. steps along the sum of its support examples' gradients, each clipped to C_0, with
   N(0, z_0^2 C_0^2 I) (lines 5 to 9);
3. sends the sum of its query examples' gradients at those weights, clipped and noised
   alike (lines 10 to 13);

the server then clips what came, adds it up, adds its own noise and takes a step as in
DP-AGR (Algorithm 2). An example is in the support step or in the query gradient, so its
privacy is that of one of them (of all inner steps, where there are more). The gradient
is first order and the normalisation within each record: nothing else passes the noise.
"""

from dpfedbench.methods.dp_agr import DpAgr
from dpfedbench.parts.budget import SupportAndQuery
from dpfedbench.parts.client_updates.maml import QUERY, SUPPORT
from dpsum.accounting.claims import ONE_RELEASE, POISSON_MOMENTS
from dpsum.sums import Sum


class DpAgrlr(DpAgr):
    """Private sums of each client over its examples, and one of the server over its
    clients.
    """

    name = "dp-agrlr"
    title = "DP-AGRLR"
    claims = {"one-pass": POISSON_MOMENTS, "own-records": ONE_RELEASE}
    defaults = {
        "model": {"normalisation": "record"},
        "client_update": {"inner_steps": 1, "order": 1},
        "within_task": {
            "threshold": 0.2,
            "multiplier": None,
            "epsilon": 2.5,
            "delta": 1.0e-5,
            "profile": "holds",
        },
    }

    # The released configuration has z = 1 and five second-order steps. Its local noise
    # is added in the support steps only.
    released = {
        "model": {"normalisation": "batch"},
        "client_update": {"inner_steps": 5, "order": 2},
        "within_task": {
            "threshold": 0.2,
            "multiplier": 1.0,
            "epsilon": None,
            "query_gradient": "exact",
        },
        "clipping": {"kind": "percentile-of-raw-norms"},
    }

    within_task: SupportAndQuery = SupportAndQuery()

    def own_sums(self) -> tuple[Sum, ...]:
        given = self.within_task
        names = (SUPPORT, QUERY) if given.query_gradient == "private" else (SUPPORT,)
        return tuple(given.sum(name, observer="server") for name in names)
