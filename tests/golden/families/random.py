"""Dropout, where no random number decides, and with our draws."""

from common import INF, NAN, OPS, f64, label, normal
from families.attention import kept


def dropout(x, *, p=0.5, training=True):
    """Only where no random number decides."""
    assert not training or p in (0.0, 1.0)
    return x * 0.0 if training and p == 1.0 else x * 1.0


def bias_dropout(x, bias, *, p=0.5, seed=0):
    y = x + bias
    return y * kept(y.shape, p, seed) / (1 - p) if 0.0 < p < 1.0 else y * (1 - p)


OPS |= {
    "dropout": ("x", dropout),
    "bias_dropout": ("x bias", bias_dropout),
}


def cases(out):
    x = f64([[1.0, -2.0, 0.0], [3.5, 1e300, -0.25]])
    out.case("dropout/p0", {"x": x}, p=0.0)
    out.case("dropout/p1", {"x": x}, p=1.0)
    out.case("dropout/p1_special", {"x": f64([INF, NAN, 1.0])}, p=1.0)
    out.case("dropout/eval", {"x": x}, p=0.5, training=False)
    out.case("dropout/empty", {"x": normal(0, 3)}, p=0.0)
    out.error("dropout/above_1", "Attr", {"x": x}, p=1.5)
    out.error("dropout/below_0", "Attr", {"x": x}, p=-0.1)
    for shape in (3, 5), (2, 3, 8), (7,), (0, 3):
        inputs = {"x": normal(*shape), "bias": normal(shape[-1])}
        for p in 0.0, 0.25, 1.0:
            out.case(f"bias_dropout/{label(shape)}_p{p}", inputs, p=p, seed=0x0123456789ABCDEF)
    wrong = {"x": x, "bias": normal(2)}
    out.error("bias_dropout/bias", "Shape", wrong, p=0.5)
    out.error("bias_dropout/scalar", "Shape", {"x": normal(), "bias": normal()}, p=0.5)
    out.error("bias_dropout/above_1", "Attr", {"x": x, "bias": normal(3)}, p=1.5)
    out.error("bias_dropout/mixed_dtypes", "Dtype", {"x": x, "bias": normal(3).float()}, p=0.5)
