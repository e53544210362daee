"""Decompositions, linear systems and determinants. Signs that are not specified are those of a positive diagonal."""

import torch

from common import OPS, f64, integers, label, normal


def prepared(x, shift, symmetric=False):
    if symmetric:
        x = (x + x.mT) / 2
    d = torch.zeros_like(x)
    d.diagonal(0, -2, -1).copy_(shift * torch.arange(1, 1 + min(x.shape[-2:])))
    return x + d


def signs(x):
    return x.detach().diagonal(0, -2, -1).sign()


def solve_triangular(a, b, *, triangle="lower", side="left", diagonal="own"):
    options = {"upper": triangle == "upper", "left": side == "left", "unitriangular": diagonal == "ones"}
    return torch.linalg.solve_triangular(a, b, **options)


def qr(x):
    q, r = torch.linalg.qr(x)
    s = signs(r)
    return q * s.unsqueeze(-2), r * s.unsqueeze(-1)


def eigh(x, *, shift=0.0, symmetric=False):
    w, v = torch.linalg.eigh(prepared(x, shift, symmetric))
    return w, v * signs(v).unsqueeze(-2)


def svd(x):
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    sign = signs(u)
    return u * sign.unsqueeze(-2), s, vh * sign.unsqueeze(-1)


OPS |= {
    "cholesky": (
        "x",
        lambda x, *, shift=0.0, symmetric=False: torch.linalg.cholesky(prepared(x, shift, symmetric)),
    ),
    "solve_triangular": ("a b", solve_triangular),
    "solve": ("a b", lambda a, b: torch.linalg.solve(a, b)),
    "inv": ("x", lambda x: torch.linalg.inv(x)),
    "det": ("x", lambda x: torch.linalg.det(x)),
    "slogdet": ("x", lambda x: tuple(torch.linalg.slogdet(x))),
    "qr": ("x", qr),
    "eigh": ("x", eigh),
    "svd": ("x", svd),
}


def cases(out):
    symmetric(out)
    systems(out)
    determinants(out)
    rectangles(out)
    refused(out)


def positive_definite(*batch, n):
    x = normal(*batch, n, n)
    return x @ x.mT + torch.eye(n, dtype=x.dtype)


def symmetric(out):
    for n in [0, 1, 2, 4, 7]:
        out.case(f"cholesky/{n}", {"x": positive_definite(n=n)})
        # PyTorch's gradient is of symmetric matrices as well.
        out.case(f"eigh/{n}", {"x": normal(n, n)}, symmetric=True)
    for batch in [(2,), (2, 3), (0,)]:
        out.case(f"cholesky/batch_{label(batch)}", {"x": positive_definite(*batch, n=3)})
        out.case(f"eigh/batch_{label(batch)}", {"x": normal(*batch, 3, 3)}, symmetric=True)
    out.case("cholesky/lower_alone", {"x": f64([[2.0, 9.0], [1.0, 3.0]])}, grads=[])
    out.case("eigh/lower_alone", {"x": f64([[2.0, 9.0], [1.0, 3.0]])}, grads=[])
    out.case("eigh/positive_definite", {"x": positive_definite(2, n=5)})
    out.case("eigh/equal_values", {"x": 2 * torch.eye(3, dtype=torch.float64)}, grads=[])
    out.case("cholesky/shift", {"x": normal(4, 4)}, shift=40.0, symmetric=True)


def systems(out):
    given = [
        ((3, 3), (3, 2)),
        ((3, 3), (3,)),
        ((2, 3, 3), (2, 3)),
        ((2, 3, 3), (2, 3, 1)),
        ((2, 1, 3, 3), (4, 3, 2)),
        ((2, 3, 3), (3,)),
        ((3, 3), (2, 3, 2)),
        ((0, 3, 3), (0, 3, 2)),
        ((0, 0), (0, 2)),
        ((3, 3), (3, 0)),
        ((1, 1), (1, 1)),
        ((8, 8), (8, 3)),
    ]
    for a, b in given:
        out.case(f"solve/{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)})
    for n, batch in [(0, ()), (1, ()), (2, ()), (5, ()), (3, (2,)), (2, (2, 2)), (3, (0,))]:
        key = label((*batch, n))
        out.case(f"inv/{key}", {"x": normal(*batch, n, n)})
        # PyTorch's determinants of no elements are constants.
        grads = None if n > 0 and 0 not in batch else []
        out.case(f"det/{key}", {"x": normal(*batch, n, n)}, grads=grads)
        out.case(f"slogdet/{key}", {"x": normal(*batch, n, n)}, grads=grads)
    out.case("inv/pivots", {"x": f64([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [3.0, 0.0, 0.0]])})
    for triangle in "lower", "upper":
        for diagonal in "own", "ones":
            for side, shape in [("left", (2, 4, 3)), ("right", (2, 3, 4))]:
                options = {"triangle": triangle, "side": side, "diagonal": diagonal}
                name = f"{triangle}_{side}_{diagonal}"
                out.case(f"solve_triangular/{name}", {"a": normal(4, 4), "b": normal(*shape)}, **options)
    out.case("solve_triangular/empty", {"a": normal(0, 0), "b": normal(0, 2)})
    # The other triangle is not read, nor is a diagonal of ones.
    unread = f64([[float("nan"), 5.0], [2.0, 0.0]])
    out.case("solve_triangular/unread", {"a": unread, "b": f64([[1.0], [3.0]])}, grads=["b"], diagonal="ones")


def determinants(out):
    turned = f64([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [4.0, 0.0, 0.0]])
    out.case("det/pivots", {"x": turned})
    out.case("slogdet/pivots", {"x": turned})
    singular = f64([[1.0, 2.0], [2.0, 4.0]])
    # The gradient is the matrix of cofactors, for which PyTorch returns 0.
    cofactors = f64([[4.0, -2.0], [-2.0, 1.0]])
    out.record("det/singular", {}, {"x": singular}, [f64(0.0)], {0: f64(1.0)}, {"x": cofactors})
    out.case("det/zeros", {"x": torch.zeros(3, 3, dtype=torch.float64)}, grads=[])
    out.case("slogdet/singular", {"x": singular}, grads=[])
    out.case("slogdet/large", {"x": 1e200 * torch.eye(4, dtype=torch.float64)})


def rectangles(out):
    for m, n, batch in [(3, 3, ()), (5, 3, ()), (3, 5, ()), (1, 4, ()), (4, 1, ()), (4, 3, (2,)), (2, 3, (2, 1)), (3, 2, (0,))]:
        key = label((*batch, m, n))
        out.case(f"qr/{key}", {"x": normal(*batch, m, n)})
        out.case(f"svd/{key}", {"x": normal(*batch, m, n)})
    for m, n in [(0, 3), (3, 0)]:
        out.case(f"qr/{m}x{n}", {"x": normal(m, n)}, grads=[])
        out.case(f"svd/{m}x{n}", {"x": normal(m, n)}, grads=[])


def refused(out):
    singular = f64([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 2.0], [2.0, 4.0]]])
    out.error("inv/singular", "Value", {"x": singular})
    out.error("solve/singular", "Value", {"a": singular, "b": normal(2, 1)})
    out.error("solve_triangular/singular", "Value", {"a": f64([[1.0, 0.0], [2.0, 0.0]]), "b": normal(2, 1)})
    out.error("cholesky/indefinite", "Value", {"x": f64([[1.0, 2.0], [2.0, 1.0]])})
    nan = f64([[float("nan"), 0.0], [0.0, 1.0]])
    for op in "cholesky", "eigh", "svd":
        out.error(f"{op}/nan", "Value", {"x": nan})
    for op in "inv", "det":
        out.case(f"{op}/nan", {"x": f64([[float("nan")]])}, grads=[])
    for op in "cholesky", "eigh", "inv", "det", "slogdet":
        out.error(f"{op}/rectangle", "Shape", {"x": normal(2, 3)})
    for op in "cholesky", "eigh", "inv", "det", "slogdet", "qr", "svd":
        out.error(f"{op}/vector", "Shape", {"x": normal(3)})
        out.error(f"{op}/integers", "Dtype", {"x": integers(2, 2)})
        out.error(f"{op}/f16", "Dtype", {"x": torch.eye(2, dtype=torch.float16)})
    for op in "solve", "solve_triangular":
        out.error(f"{op}/rectangle", "Shape", {"a": normal(2, 3), "b": normal(2, 1)})
        out.error(f"{op}/rows", "Shape", {"a": normal(2, 2), "b": normal(3, 1)})
        out.error(f"{op}/batch", "Shape", {"a": normal(2, 2, 2), "b": normal(3, 2, 1)})
        out.error(f"{op}/dtypes", "Dtype", {"a": normal(2, 2), "b": integers(2, 1)})
