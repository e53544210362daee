"""Rotary embeddings, and tokens drawn from logits."""

import math

import torch

from common import F32, F64, INF, NAN, OPS, f64, i32, i64, integers, normal


def rotary(q, k, cos, sin, positions=None, *, rotary_dim=None, style="half", direction=1):
    """As `apply_rotary_pos_emb` of Hugging Face, for a part of the row, for neighbours, and backwards."""
    positions = torch.arange(q.shape[2]) if positions is None else positions.long()
    c, s = (table[positions].unsqueeze(-3) for table in (cos, sin))

    def turned(x):
        r = x.shape[-1] if rotary_dim is None else rotary_dim
        dim, split = (-2, (2, r // 2)) if style == "half" else (-1, (r // 2, 2))
        x1, x2 = x[..., :r].unflatten(-1, split).unbind(dim)
        pairs = torch.stack((x1 * c - direction * x2 * s, x2 * c + direction * x1 * s), dim)
        return torch.cat((pairs.flatten(-2), x[..., r:]), -1)

    return turned(q), turned(k)


def sample_logits(logits, *, temperature=1.0, top_k=0, top_p=1.0, num_samples=1):
    """Where one position of each row is kept, which every draw gives: PyTorch has other draws."""
    z, order = torch.sort(logits / temperature if temperature > 0 else logits, descending=True, stable=True)
    kept = torch.arange(z.shape[1]) < (1 if temperature == 0 else top_k if top_k > 0 else z.shape[1])
    p = torch.softmax(z.masked_fill(~kept, -math.inf), -1)
    kept = kept & (p > 0) & (p.cumsum(-1) - p < top_p)
    assert kept[:, :1].all() and not kept[:, 1:].any()
    return order[:, 0] if num_samples == 1 else order[:, :1].repeat(1, num_samples)


OPS |= {
    "apply_rotary_embedding": ("q k", rotary),
    "sample_logits": ("", sample_logits),
}


def cases(out):
    op = "apply_rotary_embedding"
    angles = torch.outer(torch.arange(5, dtype=F64), 1e4 ** (-torch.arange(3, dtype=F64) / 3))
    tables = {"cos": angles.cos(), "sin": angles.sin()}
    inputs = {"q": normal(2, 3, 4, 6), "k": normal(2, 1, 4, 6)} | tables
    for style in "half", "interleaved":
        for direction in 1, -1:
            out.case(f"{op}/{style}_{direction}", inputs, style=style, direction=direction)
        out.case(f"{op}/{style}_positions", inputs | {"positions": i64([4, 0, 2, 2])}, style=style)
        out.case(f"{op}/{style}_positions_of_batches", inputs | {"positions": i32([[4, 0, 2, 2], [1, 2, 3, 4]])}, style=style)
        part = {"q": normal(1, 2, 4, 9), "k": normal(1, 2, 4, 9)} | tables
        out.case(f"{op}/{style}_part", part, rotary_dim=6, style=style)
        out.case(f"{op}/{style}_empty", {"q": normal(2, 3, 0, 6), "k": normal(2, 1, 0, 6)} | tables, style=style)
    out.error(f"{op}/odd", "Attr", inputs, rotary_dim=5)
    out.error(f"{op}/above", "Attr", inputs, rotary_dim=8)
    out.error(f"{op}/odd_row", "Attr", inputs | {"q": normal(2, 3, 4, 7), "k": normal(2, 1, 4, 7)})
    out.error(f"{op}/tables", "Shape", inputs, rotary_dim=4)
    out.error(f"{op}/sin", "Shape", inputs | {"sin": normal(4, 3)})
    out.error(f"{op}/lengths", "Shape", inputs | {"k": normal(2, 1, 3, 6)})
    out.error(f"{op}/rank", "Shape", inputs | {"k": normal(2, 4, 6)})
    out.error(f"{op}/positions_shape", "Shape", inputs | {"positions": i64([[0, 1, 2, 3]])})
    out.error(f"{op}/positions_dtype", "Dtype", inputs | {"positions": f64([0.0, 1.0, 2.0, 3.0])})
    out.error(f"{op}/negative", "Index", inputs | {"positions": i64([0, -1, 2, 3])})
    out.error(f"{op}/too_large", "Index", inputs | {"positions": i64([0, 5, 2, 3])})
    out.error(f"{op}/too_long", "Index", {"q": normal(1, 1, 6, 6), "k": normal(1, 1, 6, 6)} | tables)
    out.error(f"{op}/mixed_dtypes", "Dtype", inputs | {"k": normal(2, 1, 4, 6).to(F32)})
    out.error(f"{op}/integers", "Dtype", {name: integers(*x.shape) for name, x in inputs.items()})
    op, logits = "sample_logits", {"logits": normal(3, 7)}
    ties = {"logits": f64([[1.0, 1.0, 3.0, -INF], [2.0, -0.0, 0.0, 2.0], [-INF, -INF, -1e30, -1e30], [0.0, -0.0, 0.0, -5.0]])}
    for name, inputs in {"": logits, "_ties": ties, "_long": {"logits": normal(1, 600)}, "_one": {"logits": normal(2, 1)}}.items():
        out.case(f"{op}/temperature0{name}", inputs, temperature=0.0)
        out.case(f"{op}/top_k1{name}", inputs, top_k=1, temperature=0.7)
        out.case(f"{op}/top_p{name}", inputs, top_p=1e-9)
        out.case(f"{op}/top_k_and_top_p{name}", inputs, top_k=2, top_p=1e-9, num_samples=3)
    alone = {"logits": f64([[-INF, 3e38, -3e38], [7.0, -INF, -INF]])}
    out.case(f"{op}/alone", alone, num_samples=5)
    out.case(f"{op}/alone_of_few", alone, num_samples=2, top_k=2)
    out.case(f"{op}/cold", {"logits": f64([[1.0, 2.0, 1.5]])}, temperature=1e-3, num_samples=2)
    out.case(f"{op}/empty", {"logits": normal(0, 3)}, temperature=0.0)
    for name, bad in {"nan": [0.0, NAN, 1.0], "infinity": [0.0, INF, -INF], "nothing": [-INF, -INF, -INF]}.items():
        rows = {"logits": f64([[1.0, 2.0, 3.0], bad])}
        out.error(f"{op}/{name}", "Value", rows)
        out.error(f"{op}/{name}_top_k", "Value", rows, top_k=2)
        out.error(f"{op}/{name}_greedy", "Value", rows, temperature=0.0)
    out.error(f"{op}/no_classes", "Shape", {"logits": normal(2, 0)})
    out.error(f"{op}/rank", "Shape", {"logits": normal(3)})
    out.error(f"{op}/integers", "Dtype", {"logits": integers(2, 3)})
    out.error(f"{op}/negative_temperature", "Attr", logits, temperature=-1.0)
    out.error(f"{op}/no_temperature", "Attr", logits, temperature="nan")
    out.error(f"{op}/top_p0", "Attr", logits, top_p=0.0)
    out.error(f"{op}/top_p2", "Attr", logits, top_p=2.0)
    out.error(f"{op}/no_samples", "Attr", logits, num_samples=0)
