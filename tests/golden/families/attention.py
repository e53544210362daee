"""Scaled dot-product attention. PyTorch computes it with a mask of all conditions; dropout repeats our draws."""

import math

import torch
import torch.nn.functional as F

from common import F32, F64, INF, NAN, OPS, f64, i32, i64, integers, mask, normal


def visible(queries, keys, causal, window):
    """The keys that each query attends to by its position."""
    own = torch.arange(queries)[:, None] + (keys - queries if causal == "bottom_right" else 0)
    distance = torch.arange(keys)[None, :] - own
    before, after = (math.inf, math.inf) if window is None else window
    return (distance >= -before) & (distance <= (after if causal == "none" else 0))


def philox(seed, block):
    """Philox 4x32-10."""
    words, x, k = 0xFFFFFFFF, [block & 0xFFFFFFFF, block >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(p1 >> 32) ^ x[1] ^ k[0], p1 & words, (p0 >> 32) ^ x[3] ^ k[1], p0 & words]
        k = [(k[0] + 0x9E3779B9) & words, (k[1] + 0xBB67AE85) & words]
    return x


def kept(shape, p, seed):
    """1 for the elements that dropout keeps."""
    n = math.prod(shape)
    draws = [draw for block in range((n + 3) // 4) for draw in philox(seed, block)][:n]
    return torch.tensor([draw < math.floor((1 - p) * 2**32) for draw in draws], dtype=F64).reshape(shape)


def attention(q, k, v, mask=None, key_lengths=None, *, causal="none", scale=None, window=None, p=0.0, seed=0, lse=False):
    shape = (*q.shape[:3], k.shape[2])
    seen = visible(*shape[2:], causal, window)
    if key_lengths is not None:
        # Own positions at the end count from the last key that is there.
        seen = torch.zeros(q.shape[0], 1, *shape[2:], dtype=torch.bool)
        for i, n in enumerate(key_lengths.tolist()):
            seen[i, :, :, :n] = visible(q.shape[2], n, causal, window)
    return attend(q, k, v, mask, seen, scale, p, seed, lse)


def varlen(q, k, v, q_starts, k_starts, mask=None, *, causal="none", scale=None, window=None, p=0.0, seed=0, lse=False):
    seen = torch.zeros(q.shape[0], k.shape[0], dtype=torch.bool)
    for q0, q1, k0, k1 in zip(q_starts[:-1], q_starts[1:], k_starts[:-1], k_starts[1:]):
        seen[q0:q1, k0:k1] = visible(int(q1 - q0), int(k1 - k0), causal, window)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return attend(q, k, v, mask, seen, scale, p, seed, lse)[0].transpose(0, 1)


def attend(q, k, v, mask, seen, scale, p, seed, lse):
    shape = (*q.shape[:3], k.shape[2])
    bias = torch.zeros(shape, dtype=q.dtype)
    if mask is not None:
        bias = bias + mask if mask.is_floating_point() else bias.masked_fill(~mask, -INF)
    bias = bias.masked_fill(~seen, -INF)
    if p == 0.0 and not lse:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=True)
    repeated = [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)]
    scores = (q @ repeated[0].mT) * (q.shape[3] ** -0.5 if scale is None else scale) + bias
    empty = (scores == -INF).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if p > 0.0:
        weights = weights * kept(shape, p, seed) / (1 - p) if p < 1.0 else weights * 0.0
    y = weights @ repeated[1]
    if lse:
        # The logarithms in one result with the output, so that both have gradients.
        y = y + torch.logsumexp(scores.masked_fill(empty, 0.0), -1, keepdim=True).masked_fill(empty, -INF)
    return y


def multi_head(query, key, value, weights, bias, out_weight, out_bias, mask, key_padding_mask, heads, causal, p, seed):
    """Rows without a key are 0 before the last projection, where PyTorch's module has NaN."""
    bias = torch.zeros(3 * query.shape[2], dtype=query.dtype) if bias is None else bias
    q, k, v = (
        F.linear(x, w, b).unflatten(2, (heads, -1)).transpose(1, 2) for x, w, b in zip((query, key, value), weights, bias.chunk(3))
    )
    if key_padding_mask is not None:
        kept = ~key_padding_mask[:, None, None, :]
        mask = kept if mask is None else torch.where(kept, mask, -INF) if mask.is_floating_point() else kept & mask
    y = attention(q, k, v, mask, causal=causal, p=p, seed=seed)
    return F.linear(y.transpose(1, 2).flatten(2), out_weight, out_bias)


def multi_head_attention(
    query, key, value, out_weight, weight=None, q_weight=None, k_weight=None, v_weight=None, bias=None, out_bias=None, mask=None,
    key_padding_mask=None, *, heads, causal="none", p=0.0, seed=0,
):
    weights = (q_weight, k_weight, v_weight) if weight is None else weight.chunk(3)
    return multi_head(query, key, value, weights, bias, out_weight, out_bias, mask, key_padding_mask, heads, causal, p, seed)


def cross_attention(
    query, context, out_weight, weight=None, q_weight=None, k_weight=None, v_weight=None, bias=None, out_bias=None, mask=None,
    key_padding_mask=None, *, heads, causal="none", p=0.0, seed=0,
):
    weights = (q_weight, k_weight, v_weight) if weight is None else weight.chunk(3)
    return multi_head(query, context, context, weights, bias, out_weight, out_bias, mask, key_padding_mask, heads, causal, p, seed)


PARAMETERS = "weight q_weight k_weight v_weight bias out_weight out_bias mask"
OPS |= {
    "scaled_dot_product_attention": ("q k v mask", attention),
    "varlen_attention": ("q k v mask", varlen),
    "multi_head_attention": (f"query key value {PARAMETERS}", multi_head_attention),
    "cross_attention": (f"query context {PARAMETERS}", cross_attention),
}


def operands(b=2, hq=2, hk=2, tq=3, tk=5, d=4, dv=None):
    return {"q": normal(b, hq, tq, d), "k": normal(b, hk, tk, d), "v": normal(b, hk, tk, dv or d)}


def cases(out):
    op = "scaled_dot_product_attention"
    out.case(f"{op}/plain", operands())
    out.case(f"{op}/scale", operands(), scale=-0.7)
    out.case(f"{op}/one_query", operands(tq=1))
    out.case(f"{op}/one_key", operands(tk=1))
    out.case(f"{op}/primes", operands(1, 1, 1, 13, 17, 5))
    out.case(f"{op}/other_width", operands(dv=3))
    out.case(f"{op}/groups", operands(2, 4, 2))
    out.case(f"{op}/one_head_of_keys", operands(1, 3, 1))
    for causal in "top_left", "bottom_right":
        for name, tq, tk in ("more_keys", 3, 5), ("more_queries", 5, 3), ("square", 4, 4):
            out.case(f"{op}/{causal}_{name}", operands(1, 4, 2, tq, tk), causal=causal)
        out.case(f"{op}/{causal}_window", operands(1, 1, 1, 6, 8), causal=causal, window=[2, 9])
    out.case(f"{op}/window", operands(1, 2, 1, 7, 6), window=[2, 1])
    out.case(f"{op}/window_0", operands(1, 1, 1, 4, 4), window=[0, 0])
    some = mask([[True, False, True, True, False], [False] * 5, [True] * 5])
    out.case(f"{op}/mask", operands() | {"mask": some})
    out.case(f"{op}/mask_of_keys", operands(2, 4, 2) | {"mask": mask([[[[True, False, True, True, True]]], [[[False, True, True, False, False]]]])})
    out.case(f"{op}/mask_and_causal", operands() | {"mask": some}, causal="bottom_right")
    out.case(f"{op}/float_mask", operands() | {"mask": normal(2, 2, 3, 5)})
    out.case(f"{op}/float_mask_of_heads", operands(2, 4, 2) | {"mask": normal(4, 1, 5)}, causal="top_left")
    out.case(f"{op}/float_mask_of_keys", operands() | {"mask": f64([0.5, -INF, -1.0, -INF, 2.0])}, grads=["q", "k", "v"])
    out.case(f"{op}/float_mask_of_nothing", operands() | {"mask": f64([[-INF] * 5, [0.0] * 5, [-INF] * 5])}, grads=["q", "k", "v"])
    for p in 0.25, 1.0:
        out.case(f"{op}/dropout_{p}", operands(2, 4, 2), p=p, seed=0x0123456789ABCDEF)
    out.case(f"{op}/dropout_causal", operands(1, 2, 1, 5, 6), p=0.5, seed=7, causal="bottom_right", lse=True)
    out.case(f"{op}/lse", operands(2, 4, 2), lse=True)
    out.case(f"{op}/lse_mask", operands() | {"mask": some}, lse=True)
    out.case(f"{op}/large_scores", {"q": 100 * normal(1, 1, 3, 4), "k": 100 * normal(1, 1, 5, 4), "v": normal(1, 1, 5, 4)})
    out.case(f"{op}/many_keys", operands(1, 1, 1, 1, 4096, 1), grads=["q"])
    out.case(f"{op}/no_keys", operands(tk=0))
    out.case(f"{op}/no_queries", operands(tq=0))
    out.case(f"{op}/no_batch", operands(b=0))
    special = operands(1, 1, 1, 4, 3)
    special["q"][0, 0, 1, 2] = NAN
    out.case(f"{op}/nan", special, grads=[])
    plain = operands()
    out.error(f"{op}/heads", "Shape", operands(hq=3))
    out.error(f"{op}/widths", "Shape", plain | {"k": normal(2, 2, 5, 3)})
    out.error(f"{op}/lengths", "Shape", plain | {"v": normal(2, 2, 4, 4)})
    out.error(f"{op}/batches", "Shape", plain | {"k": normal(1, 2, 5, 4)})
    out.error(f"{op}/rank", "Shape", {name: x[0] for name, x in plain.items()})
    out.error(f"{op}/mask_shape", "Shape", plain | {"mask": mask([[True, False]])})
    out.error(f"{op}/mask_rank", "Shape", plain | {"mask": mask([[[[[True]]]]])})
    out.error(f"{op}/mask_dtype", "Dtype", plain | {"mask": integers(3, 5)})
    out.error(f"{op}/mixed_dtypes", "Dtype", plain | {"v": normal(2, 2, 5, 4).to(F32)})
    out.error(f"{op}/integers", "Dtype", {name: integers(*x.shape) for name, x in plain.items()})
    out.error(f"{op}/dropout_above_1", "Attr", plain, p=1.5)
    of_heads(out)
    of_lengths(out)
    of_sequences(out)


def of_lengths(out):
    op = "scaled_dot_product_attention"
    for causal in "none", "top_left", "bottom_right":
        out.case(f"{op}/lengths_{causal}", operands(3, 4, 2) | {"key_lengths": i64([2, 5, 0])}, causal=causal)
    out.case(f"{op}/lengths_window", operands(2, 2, 2, 4, 6) | {"key_lengths": i32([5, 3])}, causal="bottom_right", window=[1, 0], lse=True)
    out.case(f"{op}/lengths_of_one_query", operands(2, 4, 2, 1, 700) | {"key_lengths": i64([517, 700])}, causal="bottom_right")
    out.case(f"{op}/lengths_mask", operands(2, 4, 2) | {"key_lengths": i64([4, 2]), "mask": normal(3, 5)})
    plain = operands()
    out.error(f"{op}/lengths_shape", "Shape", plain | {"key_lengths": i64([1])})
    out.error(f"{op}/lengths_dtype", "Dtype", plain | {"key_lengths": f64([1.0, 2.0])})
    out.error(f"{op}/lengths_above", "Index", plain | {"key_lengths": i64([5, 6])})
    out.error(f"{op}/lengths_below", "Index", plain | {"key_lengths": i64([-1, 5])})


def packed(q, k, hq=2, hk=2, d=4, dv=None, rows=None):
    """Operands for sequences that begin with these rows."""
    tq, tk = rows or (q[-1], k[-1])
    return {"q": normal(tq, hq, d), "k": normal(tk, hk, d), "v": normal(tk, hk, dv or d), "q_starts": i64(q), "k_starts": i64(k)}


def of_sequences(out):
    op = "varlen_attention"
    same, other = [0, 3, 3, 8, 9], [0, 2, 4, 5, 11]
    out.case(f"{op}/plain", packed(same, same))
    out.case(f"{op}/other_keys", packed(same, other, 4, 2))
    out.case(f"{op}/other_width", packed(same, other, dv=3), scale=0.4)
    for causal in "top_left", "bottom_right":
        out.case(f"{op}/{causal}", packed(same, same), causal=causal)
        out.case(f"{op}/{causal}_other_keys", packed(same, other, 4, 1), causal=causal)
        out.case(f"{op}/{causal}_window", packed(same, other), causal=causal, window=[1, 9])
    out.case(f"{op}/window", packed([0, 7], [0, 6]), window=[2, 1])
    out.case(f"{op}/lse", packed(same, other), lse=True, causal="top_left")
    out.case(f"{op}/rows_of_no_sequence", packed([2, 3, 6], [1, 4, 6], rows=(9, 8)), causal="bottom_right")
    out.case(f"{op}/dropout", packed([0, 2, 5], [0, 3, 4]), p=0.4, seed=11)
    out.case(f"{op}/mask", packed([0, 2, 5], [0, 3, 4]) | {"mask": normal(2, 1, 4)})
    out.case(f"{op}/no_sequences", packed([0], [0], rows=(3, 2)))
    out.case(f"{op}/no_rows", packed([0, 0], [0, 0]))
    out.case(f"{op}/i32", packed([0, 2], [0, 3]) | {"q_starts": i32([0, 2]), "k_starts": i32([0, 3])})
    plain = packed(same, other)
    out.error(f"{op}/falls", "Index", plain | {"q_starts": i64([0, 5, 3, 8, 9])})
    out.error(f"{op}/beyond", "Index", plain | {"k_starts": i64([0, 2, 4, 5, 12])})
    out.error(f"{op}/below", "Index", plain | {"q_starts": i64([-1, 3, 3, 8, 9])})
    out.error(f"{op}/counts", "Shape", plain | {"k_starts": i64([0, 11])})
    out.error(f"{op}/nothing", "Shape", plain | {"q_starts": i64([]), "k_starts": i64([])})
    out.error(f"{op}/floats", "Dtype", plain | {"q_starts": f64([0, 3, 3, 8, 9])})
    out.error(f"{op}/rank", "Shape", plain | {"q": normal(1, 9, 2, 4)})
    out.error(f"{op}/heads", "Shape", plain | {"q": normal(9, 3, 4)})


def of_heads(out):
    op, e = "multi_head_attention", 4
    packed = {"weight": normal(3 * e, e), "bias": normal(3 * e), "out_weight": normal(e, e), "out_bias": normal(e)}
    separate = {"q_weight": normal(e, e), "k_weight": normal(e, 3), "v_weight": normal(e, 2)} | {"out_weight": normal(e, e)}
    plain = {"query": normal(2, 3, e), "key": normal(2, 5, e), "value": normal(2, 5, e)}
    ignored = {"key_padding_mask": mask([[False, True, False, False, True], [True] * 5])}
    some = {"mask": mask([[True, False, True, True, False], [False] * 5, [True] * 5])}
    for heads in 1, 2:
        out.case(f"{op}/heads_{heads}", plain | packed, heads=heads)
    other = {"query": normal(2, 3, e), "key": normal(2, 5, 3), "value": normal(2, 5, 2)}
    out.case(f"{op}/separate", other | separate, heads=2)
    out.case(f"{op}/separate_bias", other | separate | {"bias": normal(3 * e)}, heads=2, causal="top_left")
    out.case(f"{op}/ignored_keys", plain | packed | ignored, heads=2)
    out.case(f"{op}/ignored_keys_and_mask", plain | packed | ignored | some, heads=2)
    out.case(f"{op}/ignored_keys_and_float_mask", plain | packed | ignored | {"mask": normal(2, 3, 5)}, heads=2)
    out.case(f"{op}/dropout", plain | packed, heads=2, p=0.4, seed=3)
    out.error(f"{op}/heads_3", "Attr", plain | packed, heads=3)
    out.error(f"{op}/heads_0", "Attr", plain | packed, heads=0)
    out.error(f"{op}/packed_widths", "Shape", other | packed, heads=2)
    out.error(f"{op}/bias", "Shape", plain | packed | {"bias": normal(e)}, heads=2)
    out.error(f"{op}/padding_shape", "Shape", plain | packed | {"key_padding_mask": mask([[True]])}, heads=2)
    out.error(f"{op}/padding_dtype", "Dtype", plain | packed | {"key_padding_mask": integers(2, 5)}, heads=2)
    out.error(f"{op}/rank", "Shape", plain | packed | {"query": normal(3, e)}, heads=2)
    op, context = "cross_attention", {"query": normal(2, 3, e), "context": normal(2, 5, 3)}
    out.case(f"{op}/packed", {"query": normal(2, 3, e), "context": normal(2, 5, e)} | packed, heads=2)
    both = separate | {"v_weight": normal(e, 3), "bias": normal(3 * e)}
    out.case(f"{op}/separate", context | both, heads=2)
    out.case(f"{op}/ignored_keys", context | both | ignored, heads=4)
    out.error(f"{op}/batches", "Shape", context | both | {"context": normal(1, 5, 3)}, heads=2)
