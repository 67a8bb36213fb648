"""A loop that clips the gradient of the batch, and not of each record."""

import torch
from torch import nn

torch.manual_seed(0)
images, labels = torch.randn(200, 10), torch.randint(0, 2, (200,))
model = nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
C, z = 1.0, 1.0
for _ in range(5):
    batch = torch.randperm(200)[:20]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), C)
    for parameter in model.parameters():
        parameter.grad += z * C * torch.randn_like(parameter)
    optimizer.step()
