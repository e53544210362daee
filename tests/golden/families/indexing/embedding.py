"""Lookups in tables, gathers and their gradients."""

import torch
import torch.nn.functional as F

from common import OPS, covered_by, f64, i32, i64, integers, mask, normal, positive


def embedding(w, idx, *, padding_idx=None, scale_grad_by_freq=False):
    return F.embedding(idx.long(), w, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq)


def embedding_rmsnorm(w, idx, gamma=None, *, eps=1e-6):
    return F.rms_norm(w[idx.long()], w.shape[1:], gamma, eps)


def scatter_add(self, index, src, *, dim):
    return self.scatter_add(dim, index.long(), src[covered_by(index)])


OPS |= {
    "embedding": ("w", embedding),
    "gather": ("x", lambda x, index, *, dim: torch.gather(x, dim, index.long())),
    "scatter_add": ("self src", scatter_add),
    "embedding_rmsnorm": ("w gamma", embedding_rmsnorm),
}


def cases(out):
    tables(out)
    gathers(out)
    scatter_adds(out)


def tables(out):
    w, gamma = normal(5, 3), positive(3)
    indices = {"scalar": i64(2), "5": i64([0, 4, 4, 1, 4]), "2x2_i32": i32([[1, 1], [0, 3]]), "empty": i64([])}
    for name, idx in indices.items():
        out.case(f"embedding/{name}", {"w": w, "idx": idx})
        out.case(f"embedding_rmsnorm/{name}", {"w": w, "idx": idx, "gamma": gamma})
        out.case(f"embedding_rmsnorm/{name}_plain", {"w": w, "idx": idx}, eps=1e-3)
    idx = i64([0, 4, 4, 1, 4, 0])
    out.case("embedding/padding", {"w": w, "idx": idx}, padding_idx=4)
    out.case("embedding/padding_negative", {"w": w, "idx": idx}, padding_idx=-5)
    out.case("embedding/frequency", {"w": w, "idx": idx}, scale_grad_by_freq=True)
    out.case("embedding/frequency_padding", {"w": w, "idx": idx}, padding_idx=0, scale_grad_by_freq=True)
    out.case("embedding_rmsnorm/zero_row", {"w": f64([[0.0, 0.0], [3.0, 4.0]]), "idx": i64([0, 1])})
    for op in "embedding", "embedding_rmsnorm":
        out.error(f"{op}/too_large", "Index", {"w": w, "idx": i64([0, 5])})
        out.error(f"{op}/negative", "Index", {"w": w, "idx": i64([-1])})
        out.error(f"{op}/float_index", "Dtype", {"w": w, "idx": f64([1.0])})
    out.error("embedding/padding_out_of_range", "Attr", {"w": w, "idx": idx}, padding_idx=5)


def gathers(out):
    x = normal(3, 4)
    out.case("gather/rows", {"x": x, "index": i64([[2, 0, 0, 1], [2, 2, 0, 0]])}, dim=0)
    out.case("gather/columns", {"x": x, "index": i64([[3, 3, 3, 0, 1], [0, 1, 2, 3, 0]])}, dim=1)
    out.case("gather/i32", {"x": x, "index": i32([[3, 1], [0, 0], [2, 2]])}, dim=-1)
    out.case("gather/rank3", {"x": normal(2, 3, 2), "index": integers(2, 4, 1, low=0, high=3)}, dim=1)
    out.case("gather/scalar", {"x": normal(), "index": i64(0)}, dim=0)
    out.case("gather/empty", {"x": x, "index": integers(3, 0)}, dim=1)
    out.case("gather/integers", {"x": integers(3, 4), "index": i64([[2, 0, 0, 1]])}, dim=0)
    out.case("gather/bools", {"x": mask([True, False, True]), "index": i64([1, 1, 0, 2])}, dim=0)
    out.error("gather/negative", "Index", {"x": x, "index": i64([[-1]])}, dim=0)
    out.error("gather/too_large", "Index", {"x": x, "index": i64([[3]])}, dim=0)
    out.error("gather/rank", "Shape", {"x": x, "index": i64([0])}, dim=0)
    out.error("gather/wider", "Shape", {"x": x, "index": integers(3, 5, low=0, high=3)}, dim=0)


def scatter_adds(out):
    x, op = normal(3, 4), "scatter_add"
    out.case(f"{op}/rows", {"self": x, "index": i64([[2, 0, 0, 1], [2, 2, 0, 1]]), "src": normal(2, 4)}, dim=0)
    out.case(f"{op}/columns_i32", {"self": x, "index": i32([[3, 3, 3, 0, 1], [0, 1, 2, 3, 0]]), "src": normal(2, 5)}, dim=-1)
    out.case(f"{op}/larger_src", {"self": x, "index": i64([[2, 0], [1, 1]]), "src": normal(3, 4)}, dim=0)
    out.case(f"{op}/scalar", {"self": normal(), "index": i64(0), "src": normal()}, dim=0)
    out.case(f"{op}/empty", {"self": x, "index": integers(0, 4), "src": normal(0, 4)}, dim=0)
    out.case(f"{op}/integers", {"self": integers(4), "index": i64([1, 1, 3]), "src": integers(3)}, dim=0)
    out.error(f"{op}/negative", "Index", {"self": x, "index": i64([[-1]]), "src": normal(1, 1)}, dim=0)
    out.error(f"{op}/too_large", "Index", {"self": x, "index": i64([[3]]), "src": normal(1, 1)}, dim=0)
    out.error(f"{op}/src_smaller", "Shape", {"self": x, "index": i64([[0, 1]]), "src": normal(1, 1)}, dim=0)
