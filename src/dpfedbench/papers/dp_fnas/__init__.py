"""DP-FNAS (Singh et al. 2020): a private federated search for an architecture, and the
training of the network that it found.

Search (Algorithm 1). Each iteration, each party

1. takes a Poisson lot of its training half, clips each record's gradient of the weights
   W to R_G, adds them up and adds N(0, sigma^2 R_G^2 I): a release; the server steps W
   along the parties' sums;
2. takes a Poisson lot of its validation half, clips each record's gradient of the
   architecture A, at the new W, to R_H, adds them up and adds N(0, tau^2 R_H^2 I): a
   release; the server steps A.

The halves are drawn at random, independently of the records. A record is in one half,
so that the proven epsilon is the larger one of the two mechanisms, not their
composition (Section 3.2). Sums are divided by the expected size of a lot: division by
the realised size, as in Algorithm 1, would disclose that size. Eq. 7 (second order)
reads both halves in one release; no method here uses it.

Augmentation (Section 4). The cells that the search found make a larger network, which
is trained from scratch on all training records, and tested. The paper trains it without
privacy, also after a private search, so that no finite epsilon is proven. `DpCells` is
the private alternative.

| module | contents |
|---|---|
| `methods` | the methods, and the sums that they take |
| `search_steps` | the steps of a search, by Algorithm 1 |
| `released_search` | the steps of the authors' released code, which protects no record |
"""
