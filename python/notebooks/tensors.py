# %% [markdown]
# Tensors, gradients, and NumPy: a line through points.

# %%
import isograd
import numpy as np

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 200)
y = 3 * x - 1 + 0.1 * rng.standard_normal(200)

# %% The arrays are read where they are.
points, values = isograd.from_dlpack(x), isograd.from_dlpack(y)
assert points.data_ptr() == x.ctypes.data

# %%
slope = isograd.tensor(0.0, dtype="f64", requires_grad=True)
offset = isograd.tensor(0.0, dtype="f64", requires_grad=True)
optimizer = isograd.optim.Adam([slope, offset], lr=0.1)
for _ in range(200):
    loss = ((points * slope + offset - values) ** 2).mean()
    loss.backward()
    optimizer.step()
print(f"{slope.item():.2f} x + {offset.item():.2f}, loss {loss.item():.4f}")
assert abs(slope.item() - 3) < 0.1 and abs(offset.item() + 1) < 0.1

# %% Second derivatives: the curvature of the loss along the slope is the mean of 2 x^2.
loss = ((points * slope + offset - values) ** 2).mean()
(first,) = isograd.grad(loss, slope, create_graph=True)
(second,) = isograd.grad(first, slope)
assert np.isclose(second.item(), np.mean(2 * x**2))

# %% A captured step is recorded and replayed where the device can record.
step = isograd.capture(lambda t: (t.exp() * 2).sum())
print(step(points).item(), 2 * np.exp(x).sum())
