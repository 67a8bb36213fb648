"""Networks: their parameters as one flat vector, and their gradients."""
