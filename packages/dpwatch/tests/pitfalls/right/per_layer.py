"""A right Opacus training with a threshold for each tensor, a schedule and dropout."""

import sys

import torch
from opacus import PrivacyEngine
from torch import nn

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
data = torch.utils.data.TensorDataset(torch.randn(200, 10), torch.randint(0, 2, (200,)))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_function = nn.CrossEntropyLoss()
engine = PrivacyEngine(accountant="rdp")
model, optimizer, loader = engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    noise_multiplier=1.0,
    max_grad_norm=[0.5, 0.1, 0.5, 0.1],
    clipping="per_layer",
)
for _ in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
print(f"epsilon {engine.get_epsilon(1e-5):.2f}")
