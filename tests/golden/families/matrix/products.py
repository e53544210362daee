"""Products that an equation describes, other products of vectors and matrices, and distances of vectors."""

import torch
import torch.nn.functional as F

from common import F32, OPS, f64, integers, label, normal, of_a_b


def einsum(*, equation, **operands):
    return torch.einsum(equation, *operands.values())


OPS |= {
    "einsum": ("x*", einsum),
    "outer": of_a_b(torch.outer),
    "kron": of_a_b(torch.kron),
    "bilinear": ("x y w b", lambda x, y, w, b=None: F.bilinear(x, y, w, b)),
    "cdist": ("a b", lambda a, b, *, norm="2": torch.cdist(a, b, float(norm))),
    "pairwise_distance": (
        "a b",
        lambda a, b, *, norm="2", eps=1e-6: F.pairwise_distance(a, b, float(norm), eps),
    ),
    "cosine_similarity": ("a b", lambda a, b, *, dim=1, eps=1e-8: F.cosine_similarity(a, b, dim, eps)),
}


def cases(out):
    equations(out)
    products(out)
    forms(out)
    distances(out)


def operands(*shapes):
    return {f"x{k}": normal(*shape) for k, shape in enumerate(shapes)}


def equations(out):
    given = [
        ("i->", (3,)),
        ("->", ()),
        ("ij->ji", (2, 3)),
        ("ji", (2, 3)),
        ("bA", (2, 3)),
        ("ij->j", (2, 3)),
        ("ijk->ki", (2, 3, 4)),
        ("ii", (3, 3)),
        ("ii->i", (3, 3)),
        ("iji->ij", (2, 3, 2)),
        ("iii->i", (3, 3, 3)),
        ("jiji->", (2, 3, 2, 3)),
        ("...ii->...i", (2, 1, 3, 3)),
        ("...i->i", (2, 3, 4)),
        ("i...->...i", (2, 3, 4)),
        ("i,i->", (4,), (4,)),
        ("i,i->i", (4,), (4,)),
        ("i,j", (2,), (3,)),
        ("i,j->ji", (2,), (3,)),
        (",i", (), (3,)),
        ("ij,jk", (2, 3), (3, 4)),
        ("ij,jk->ki", (2, 3), (3, 4)),
        ("ij,kj->ik", (2, 3), (4, 3)),
        ("ij,j", (2, 3), (3,)),
        ("ij,kl->ijkl", (2, 3), (4, 2)),
        ("ij,kl->jl", (2, 3), (4, 2)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bij,bjk->ik", (2, 3, 4), (2, 4, 5)),
        ("ijb,bjk->kbi", (3, 4, 2), (2, 4, 5)),
        ("bhqd,bkhd->bqhk", (2, 3, 4, 5), (2, 2, 3, 5)),
        ("...ij,...jk->...ik", (2, 1, 2, 3), (3, 3, 2)),
        ("...ij,jk", (2, 2, 3), (3, 4)),
        ("ij,...j", (2, 3), (5, 3)),
        ("...,...", (2, 3), (3,)),
        ("b...i,...i->b...", (2, 3, 4), (3, 4)),
        ("ij,jk->ik", (2, 1), (3, 4)),
        ("ii,i->i", (1, 1), (3,)),
        ("ij,ij,ij->ij", (2, 3), (2, 3), (1, 3)),
        ("ij,jk,kl->il", (2, 9), (9, 1), (1, 5)),
        ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
        ("a,b,c,abc->", (2,), (3,), (4,), (2, 3, 4)),
        ("ea,fb,abcd,gc,hd->efgh", (2, 3), (3, 2), (3, 2, 2, 3), (2, 2), (4, 3)),
        ("ab,bc,cd,de,ef,fg,gh->ah", (2, 3), (3, 2), (2, 4), (4, 1), (1, 3), (3, 2), (2, 2)),
        ("ij,jk->ik", (2, 0), (0, 3)),
        ("ij->i", (2, 0)),
        ("bij,bjk->bik", (0, 2, 3), (0, 3, 2)),
    ]
    for number, (equation, *shapes) in enumerate(given):
        out.case(f"einsum/{number}", operands(*shapes), equation=equation)
    out.case("einsum/spaces", operands((2, 3), (3, 4)), equation=" i j , jk -> i k ")
    out.case("einsum/any_rank", operands((2,), ()), equation="...i,...->...i")
    wrong = [
        ("unknown", "Attr", "i1->i", (2, 2)),
        ("twice", "Attr", "ij->ii", (2, 2)),
        ("absent", "Attr", "ij->ik", (2, 2)),
        ("few", "Attr", "ij,jk->ik", (2, 2)),
        ("many", "Attr", "ij->ij", (2, 2), (2, 2)),
        ("two_ellipses", "Attr", "...i...->i", (2, 2)),
        ("two_arrows", "Attr", "ij->j->i", (2, 2)),
        ("two_dots", "Attr", "..i->i", (2, 2)),
        ("rank", "Shape", "ij->i", (2, 2, 2)),
        ("low_rank", "Shape", "...ij->i", (2,)),
        ("extent", "Shape", "ij,jk->ik", (2, 3), (2, 3)),
        ("diagonal", "Shape", "ii->i", (2, 3)),
        ("ellipsis_extent", "Shape", "...i,...i->i", (2, 3), (3, 3)),
    ]
    for name, kind, equation, *shapes in wrong:
        out.error(f"einsum/{name}", kind, operands(*shapes), equation=equation)
    out.error("einsum/integers", "Dtype", {"x0": integers(2, 2)}, equation="ij->ji")
    out.error("einsum/mixed_dtypes", "Dtype", {"x0": normal(2, 2), "x1": normal(2, 2).to(F32)}, equation="ij,jk->ik")


def products(out):
    for n, m in [(2, 3), (1, 1), (0, 2)]:
        out.case(f"outer/{n}x{m}", {"a": normal(n), "b": normal(m)})
    out.case("outer/integers", {"a": integers(2), "b": integers(3)})
    out.error("outer/matrix", "Shape", {"a": normal(2, 2), "b": normal(2)})
    for a, b in [((2, 3), (3, 2)), ((2,), (3,)), ((), (2, 2)), ((2, 1, 2), (3,)), ((2, 2), (1, 2, 3)), ((0, 2), (2, 2))]:
        out.case(f"kron/{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)})
    out.case("kron/integers", {"a": integers(2, 2), "b": integers(2)})
    out.error("kron/rank", "Shape", {"a": normal(1, 1, 2, 2, 1), "b": normal(2)})


def forms(out):
    for rows in [(), (2,), (2, 3), (0,)]:
        inputs = {"x": normal(*rows, 3), "y": normal(*rows, 4), "w": normal(2, 3, 4)}
        out.case(f"bilinear/{label(rows)}", inputs)
        out.case(f"bilinear/{label(rows)}_bias", inputs | {"b": normal(2)})
    xyw = {"x": normal(2, 3), "y": normal(2, 4), "w": normal(5, 3, 4)}
    out.error("bilinear/rows", "Shape", xyw | {"y": normal(3, 4)})
    out.error("bilinear/weight", "Shape", xyw | {"w": normal(5, 4, 3)})
    out.error("bilinear/bias", "Shape", xyw | {"b": normal(4)})
    out.error("bilinear/rank", "Shape", xyw | {"w": normal(3, 4)})


def distances(out):
    shapes = [((2, 3), (4, 3)), ((2, 2, 3), (2, 1, 3)), ((2, 1, 2, 3), (3, 2, 3)), ((2, 0), (3, 0)), ((0, 3), (2, 3))]
    for p in ["0", "0.5", "1", "2", "3.5", "inf"]:
        for a, b in shapes:
            # PyTorch's gradient of the number of components that differ is 0; ours is outside of the tape.
            grads = [] if p == "0" else None
            out.case(f"cdist/{p}_{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)}, norm=p, grads=grads)
    # The large form of PyTorch rounds as ours.
    for a, b in [((26, 3), (2, 3)), ((2, 3, 4), (26, 4))]:
        out.case(f"cdist/many_{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)}, tolerance=1e-9)
    same = f64([[0.0, 1.0], [2.0, 0.0]])
    for p in ["0", "1", "2", "3", "inf"]:
        grads = [] if p == "0" else None
        out.case(f"cdist/same_{p}", {"a": same, "b": same[:1]}, norm=p, grads=grads)
    out.error("cdist/order", "Attr", {"a": normal(2, 3), "b": normal(2, 3)}, norm="-1")
    out.error("cdist/length", "Shape", {"a": normal(2, 3), "b": normal(2, 4)})
    out.error("cdist/vector", "Shape", {"a": normal(3), "b": normal(2, 3)})
    out.error("cdist/batch", "Shape", {"a": normal(2, 2, 3), "b": normal(3, 2, 3)})
    out.error("cdist/integers", "Dtype", {"a": integers(2, 3), "b": integers(2, 3)})
    ab = {"a": normal(2, 3), "b": normal(2, 3)}
    for p in ["1", "2", "3", "-1.5", "inf"]:
        out.case(f"pairwise_distance/{p}", ab, norm=p)
    out.case("pairwise_distance/eps", ab, eps=0.1)
    out.case("pairwise_distance/vector", {"a": normal(3), "b": normal(2, 1, 3)})
    out.error("pairwise_distance/shape", "Shape", {"a": normal(2, 3), "b": normal(2, 2)})
    for dim in [0, 1, -1]:
        out.case(f"cosine_similarity/{dim}", ab, dim=dim)
    out.case("cosine_similarity/broadcast", {"a": normal(2, 3, 4), "b": normal(3, 1)}, dim=-1)
    # Below eps PyTorch's gradient is as if the length were free; ours is that of the function.
    out.case("cosine_similarity/small", {"a": f64([[1e-9, 2e-9]]), "b": f64([[1.0, 2.0]])}, grads=["b"])
    out.case("cosine_similarity/zero", {"a": f64([[0.0, 0.0]]), "b": f64([[1.0, 2.0]])}, dim=1)
    # PyTorch's squares overflow.
    large = {"a": f64([[1e200, 1e200]]), "b": f64([[1e200, 0.0]])}
    out.record("cosine_similarity/large", {"dim": 1, "eps": 1e-8}, large, [f64([0.5**0.5])], {}, {})
    out.error("cosine_similarity/dim", "Attr", ab, dim=2)
    out.error("cosine_similarity/shape", "Shape", {"a": normal(2, 3), "b": normal(2, 2)})
