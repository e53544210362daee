"""PyTorch's times for what crates/isograd/examples/decoding.rs measures: packed sequences, and one query of many keys."""

import json

import torch
import torch.nn.functional as F


def ms(f):
    for _ in range(3):
        f()
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[10]


def packed():
    lengths = [128 * i for i in range(1, 17)]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(sum(lengths), 16, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    dy = torch.randn_like(q)
    try:
        from torch.nn.attention.varlen import varlen_attn

        def attend():
            try:
                return varlen_attn(q, k, v, starts, starts, max(lengths), max(lengths), is_causal=True)
            except TypeError:
                return varlen_attn(q, k, v, starts, starts, max(lengths), max(lengths), window_size=(-1, 0))

        name = "varlen_attn"
        attend()
    except ImportError:
        name = "padded"
        q, k, v = (torch.randn(16, 16, 2048, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        dy = torch.randn_like(q)

        def attend():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with torch.no_grad():
        forward = ms(attend)
    both = ms(lambda: torch.autograd.grad(attend(), [q, k, v], dy))
    print(json.dumps({"torch": name, "packed_ms": forward, "with_gradients_ms": both}))


def many_keys():
    for heads in 8, 32:
        q = torch.randn(1, heads, 1, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, 8, 65536, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        print(json.dumps({"torch_many_keys": heads, "ms": ms(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))}))


packed()
many_keys()
