# %% [markdown]
# isograd's ops in a model of PyTorch.

# %%
import isograd.torch as it
import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.query_key_value = nn.RMSNorm(width), nn.Linear(width, 3 * width)
        self.out, self.ffn_norm = nn.Linear(width, width), nn.RMSNorm(width)
        self.gate, self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.query_key_value(self.norm(x)).chunk(3, -1))
        x = x + self.out(it.attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(it.swiglu(self.gate(h), self.up(h)))


# %% A small language model learns to count.
model = nn.Sequential(nn.Embedding(16, 32), Block(32), nn.Linear(32, 16))
print(it.patch(model), "parts are isograd's")
optimizer = it.Optimizer("adamw", model.parameters(), lr=3e-3)
for _ in range(150):
    start = torch.randint(0, 16, (8, 1))
    tokens = (start + torch.arange(13)) % 16
    optimizer.zero_grad()
    loss = it.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
assert loss.item() < 0.5

# %% Any op of isograd's is there, with gradients.
x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda x: it.ops.logcumsumexp(x, dim=1), [x])
