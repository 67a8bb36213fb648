"""DP-FNAS (Singh et al. 2020): a private federated search for an architecture, and the
training of the network that it found.

Search (Algorithm 1). Each iteration, each party

1. takes a Poisson lot of its training half, clips each record's gradient of the weights
   W to R_G, adds them up and adds N(0, sigma^2 R_G^2 I): a release; the server steps W
   along the parties' sums;
2. takes a Poisson lot of its validation half, clips each record's gradient of the
   architecture A, at the new W, to R_H, adds them up and adds N(0, tau^2 R_H^2 I): a
   release; the server steps A.

Halves are drawn at random, whatever the records are. A record is in one half, so the
proven epsilon is the larger of the two mechanisms', not their composition (Section
3.2). Sums are divided by the expected lot: to divide by the realised one, as Algorithm
1 does, tells how many came. Eq. 7 (second order) reads both halves in one release; no
method here does.

Augmentation (Section 4). The cells that the search found make a larger network, which
is trained from scratch on all training records, and tested. The paper does this without
privacy, whatever the search was: nothing finite is proven. `DpCells` is its private
rival.

| module | what it holds |
|---|---|
| `methods` | the methods, and the sums that they take |
| `search_steps` | the steps of a search, by Algorithm 1 |
| `released_search`, `by_kernel` | what the authors' released code does, which protects no record |
"""
