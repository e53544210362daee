"""Writes attention.safetensors: layers of attention as PyTorch 2.11 computes them in f64, with the states that it saves.

Run it as tests/golden/generate.py says. A layer's tensors have its name in front: its state, its inputs, its result `y`, the gradient
`dy` of the result, and under `grad.` the gradients of inputs and parameters.
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
tensors = {}
E, HEADS, HIDDEN = 4, 2, 6


def normal(*shape):
    return torch.randn(shape)


def layer(name, module, inputs, call):
    """Records a layer with normal parameters."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    inputs = {key: x.requires_grad_() for key, x in inputs.items()}
    y = call(module, **inputs)
    dy = torch.randn_like(y)
    leaves = inputs | dict(module.named_parameters())
    gradients = torch.autograd.grad(y, list(leaves.values()), dy)
    found = {f"state.{key}": x for key, x in module.state_dict().items()} | inputs | {"y": y, "dy": dy}
    found |= {f"grad.{key}": g for key, g in zip(leaves, gradients)}
    for key, x in found.items():
        tensors[f"{name}.{key}"] = x.detach().clone(memory_format=torch.contiguous_format)


def attention(module, query, key, value, **masks):
    return module(query, key, value, need_weights=False, **masks)[0]


class Causal(torch.nn.Module):
    """Self-attention with rotary positions and shared heads of keys, as Hugging Face's LLaMA has it."""

    def __init__(self, heads, key_heads):
        super().__init__()
        self.heads, width = heads, E // heads * key_heads
        self.q_proj, self.o_proj = torch.nn.Linear(E, E, bias=False), torch.nn.Linear(E, E, bias=False)
        self.k_proj, self.v_proj = torch.nn.Linear(E, width, bias=False), torch.nn.Linear(E, width, bias=False)

    def forward(self, x):
        q, k, v = (p(x).unflatten(2, (-1, E // self.heads)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        half = q.shape[3] // 2
        angles = torch.outer(torch.arange(x.shape[1]), 10000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        # The tables are f32.
        cos, sin = angles.cos().float().double(), angles.sin().float().double()
        turned = lambda x: x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


ignored = torch.tensor([[False, True, False, False, True], [False, False, False, True, True]])
masked = torch.tensor([[False, True, False, False, True], [False, False, True, True, True], [True, False, False, False, False]])
of_three = lambda k=E, v=E: {"query": normal(2, 3, E), "key": normal(2, 5, k), "value": normal(2, 5, v)}
layer("packed", torch.nn.MultiheadAttention(E, HEADS, batch_first=True), of_three(), attention)
layer(
    "masked",
    torch.nn.MultiheadAttention(E, HEADS, batch_first=True),
    of_three(),
    lambda module, **x: attention(module, **x, attn_mask=masked, key_padding_mask=ignored),
)
layer("widths", torch.nn.MultiheadAttention(E, HEADS, kdim=3, vdim=2, batch_first=True), of_three(3, 2), attention)
for name, options in {"after": {}, "first": {"norm_first": True, "activation": "gelu", "layer_norm_eps": 0.1}}.items():
    options |= {"dim_feedforward": HIDDEN, "dropout": 0.0, "batch_first": True}
    final = torch.nn.LayerNorm(E, eps=0.1) if name == "first" else None
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(E, HEADS, **options), 2, final, enable_nested_tensor=False)
    layer(f"encoder_{name}", encoder, {"x": normal(2, 3, E)}, lambda module, x: module(x))
    final = torch.nn.LayerNorm(E, eps=0.1) if name == "first" else None
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(E, HEADS, **options), 1, final)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(3)
    layer(
        f"decoder_{name}",
        decoder,
        {"x": normal(2, 3, E), "memory": normal(2, 5, E)},
        lambda module, x, memory: module(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=ignored),
    )
layer("causal", Causal(2, 1), {"x": normal(2, 5, E)}, lambda module, x: module(x))
save_file(tensors, pathlib.Path(__file__).parent / "attention.safetensors")
