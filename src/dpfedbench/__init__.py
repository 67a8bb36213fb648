"""dpfedbench: a benchmark of differentially private federated meta-learning."""
