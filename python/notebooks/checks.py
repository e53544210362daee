# %% [markdown]
# The checks of an op for a function of one's own.

# %%
import isograd


def silu(x):
    return x * isograd.sigmoid(x)


report = isograd.check(silu, "silu", library="isograd", dtypes=["f32", "bf16"], without=["special"])
print(report)

# %% Its limit at minus infinity is wrong: NaN instead of 0.
report = isograd.check(silu, "silu", library="isograd")
print(report)
assert not report.passed


# %% The gradient is wrong by a factor.
def twice(x):
    y = isograd.silu(x)
    return y * 2 - y.detach()


assert not isograd.check(twice, "silu", library="isograd").passed
