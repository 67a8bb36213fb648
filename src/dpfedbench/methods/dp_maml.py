"""DP-MAML, task level (Algorithm 1): each client is a task, and is protected from
everyone who gets the meta-model.

While the budget lasts, the server

1. takes a lot of L tasks (one pass: no task is used twice),
2. gets from each the gradient of its query loss at the weights adapted to its support
   set (inner loop, eq. 1 and 2),
3. clips each to C in L2 norm over all weights,
4. takes g = (sum + N(0, z^2 C^2 I)) / L and moves the meta-model along it (outer loop),
5. sets the next C from the norms of the lots so far: their k-th percentile over a
   window of W = 2 L tasks, which is two rounds, moved by one lot, and only if it is not
   above the last one (Section 5.2.1, Figure 3).

As published, step 5 reads the norms before clipping, and no finite epsilon holds. The
repair is the same with clipping rule `private-quantile`: the count of the lot's norms
at most C is released with noise, which costs next to nothing at L = 1,600. Where
Section 5.2.1 and Algorithm 1 disagree: `docs/findings/dp-maml.md`.
"""

from dpfedbench.methods.dp_agr import DpAgr


class DpMaml(DpAgr):
    """One private sum a lot, over its tasks, and one more for a private quantile."""

    name = "dp-maml"
    title = "DP-MAML"
    paper = "dp-maml"
    defaults = {
        "clipping": {
            "kind": "percentile-of-raw-norms",
            "percentile": 90,
            "window": 2,
            "never_rising": True,
        },
    }
