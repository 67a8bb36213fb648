"""A loop that divides the clipped sum by the realised size of the batch."""

import torch
from torch import nn

torch.manual_seed(0)
images, labels = torch.randn(200, 10), torch.randint(0, 2, (200,))
model = nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
C, z = 1.0, 1.0
for _ in range(5):
    batch = torch.randperm(200)[:20]
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for record in batch:
        optimizer.zero_grad()
        output = model(images[record : record + 1])
        nn.functional.cross_entropy(output, labels[record : record + 1]).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        for part, gradient in zip(total, gradients, strict=True):
            part += gradient * min(1.0, C / float(norm))
    for parameter, part in zip(model.parameters(), total, strict=True):
        parameter.grad = part / len(batch) + z * C * torch.randn_like(part) / 20
    optimizer.step()
