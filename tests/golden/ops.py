"""What each op means, in PyTorch: the table `OPS` at the end, and above it the formulas PyTorch has no function for.

A reference takes its inputs by name and its attributes as keyword-only arguments; their defaults are written into the
case, `None` meaning absent. An attribute that shares its name with an input is renamed by `ATTRIBUTE_NAMES`.
"""

import functools
import itertools
import math

import torch
import torch.nn.functional as F

ATTRIBUTE_NAMES = {"norm": "p"}

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def long(index):
    """PyTorch wants i64 where we accept i32 as well; masks stay masks."""
    return index if index.dtype == torch.bool else index.long()


def reduced(loss, reduction):
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


def all_dims(x, dims):
    return list(range(x.dim())) if not dims else dims


# Activations that PyTorch computes with an f32 constant, or with a gradient at NaN that depends on the length


def exponential_unit(x, alpha, scale=1.0, width=1.0):
    return scale * torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / width), x)


def hardtanh(x, *, min=-1.0, max=1.0):
    return torch.where(x <= min, min, torch.where(x >= max, max, x))


def hardsigmoid(x):
    return torch.where((-3 < x) & (x < 3), (x + 3) / 6, ((x + 3).clamp(0, 6) / 6).detach())


# Pooling


def max_pool(n):
    pool = getattr(F, f"max_pool{n}d")

    def reference(x, *, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=True):
        y, index = pool(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)
        return (y, index) if return_indices else y

    return reference


def avg_pool(n):
    pool = getattr(F, f"avg_pool{n}d")

    def reference(x, *, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        # One dimension has no divisor of its own.
        if n == 1:
            two = [[1, k[0] if isinstance(k, list) else k] for k in (kernel_size, kernel_size if stride is None else stride)]
            two.append([0, padding[0] if isinstance(padding, list) else padding])
            y = F.avg_pool2d(x.unsqueeze(-2), *two, ceil_mode, count_include_pad, divisor_override)
            return y.squeeze(-2)
        return pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return reference


def adaptive_max_pool(n):
    pool = getattr(F, f"adaptive_max_pool{n}d")

    def reference(x, *, output_size, return_indices=True):
        y, index = pool(x, output_size, return_indices=True)
        return (y, index) if return_indices else y

    return reference


def adaptive_avg_pool(n):
    pool = getattr(F, f"adaptive_avg_pool{n}d")
    return lambda x, *, output_size: pool(x, output_size)


# Losses


def cross_entropy(logits, target, weight=None, token_bytes=None, *, ignore_index=None, label_smoothing=0.0, reduction="mean"):
    if not target.is_floating_point():
        target = target.long()
    options = {"weight": weight, "label_smoothing": label_smoothing}
    options["ignore_index"] = -100 if ignore_index is None else ignore_index
    if reduction != "byte_mean":
        return F.cross_entropy(logits, target, reduction=reduction, **options)
    loss = F.cross_entropy(logits, target, reduction="none", **options)
    valid = target != options["ignore_index"]
    bytes_ = torch.where(valid, token_bytes[target.where(valid, 0)], 0.0)
    return (loss * bytes_).sum() / bytes_.sum() if bytes_.sum() != 0 else (loss * 0).sum()


def nll_loss(logp, target, weight=None, *, ignore_index=-100, reduction="mean"):
    return F.nll_loss(logp, target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def bce_loss(p, t, weight=None, *, reduction="mean"):
    return F.binary_cross_entropy(p, t, weight, reduction=reduction)


def bce_with_logits(x, t, weight=None, pos_weight=None, *, reduction="mean"):
    return F.binary_cross_entropy_with_logits(x, t, weight, pos_weight=pos_weight, reduction=reduction)


def focal_loss(x, t, *, alpha=0.25, gamma=2.0, from_logits=True, reduction="mean"):
    if from_logits:
        p = x.sigmoid()
        ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    else:
        p = x.clamp(1e-7, 1 - 1e-7)
        ce = -(t * p.log() + (1 - t) * torch.log1p(-p))
    loss = ce * (p * (1 - t) + (1 - p) * t) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * t + (1 - alpha) * (1 - t))
    return reduced(loss, reduction)


def triplet_loss(a, p, n, *, margin=1.0, norm=2.0, eps=1e-6, swap=False, reduction="mean"):
    return F.triplet_margin_loss(a, p, n, margin=margin, p=norm, eps=eps, swap=swap, reduction=reduction)


def contrastive_loss(x1, x2, y, *, margin=1.0, reduction="mean"):
    squared = (x1 - x2).square().sum(-1)
    apart = squared > 0
    distance = torch.where(apart, squared, 1.0).sqrt().where(apart, 0.0)  # gradient 0, not NaN, at distance 0
    return reduced(y * squared + (1 - y) * (margin - distance).clamp(min=0).square(), reduction)


# Normalisation


def layer_norm(x, weight=None, bias=None, *, dims=1, eps=1e-5):
    return F.layer_norm(x, x.shape[-dims:], weight, bias, eps)


def rms_norm(x, weight=None, *, dims=1, eps=1e-5):
    return F.rms_norm(x, x.shape[-dims:], weight, eps)


def average_factor(momentum, num_batches):
    """The weight of a batch: without a momentum, all batches weigh the same."""
    if momentum is not None:
        return momentum
    return 1.0 if num_batches is None else 1.0 / (num_batches.item() + 1)


def batch_norm(
    x, weight=None, bias=None, running_mean=None, running_var=None, num_batches=None, *, training=True, momentum=0.1, eps=1e-5
):
    kept = [t if t is None else t.clone() for t in (running_mean, running_var)]
    return F.batch_norm(x, *kept, weight, bias, training, average_factor(momentum, num_batches), eps)


def group_norm(x, weight=None, bias=None, *, num_groups, eps=1e-5):
    if weight is None and bias is not None:  # of which PyTorch has no gradient
        weight = torch.ones_like(bias)
    return F.group_norm(x, num_groups, weight, bias, eps)


def instance_norm(
    x,
    weight=None,
    bias=None,
    running_mean=None,
    running_var=None,
    num_batches=None,
    *,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    kept = [t if t is None else t.clone() for t in (running_mean, running_var)]
    return F.instance_norm(x, *kept, weight, bias, use_input_stats, average_factor(momentum, num_batches), eps)


def running(norm):
    """The statistics that a call leaves, and the number of batches."""

    def after(x, running_mean, running_var, num_batches=None, *, momentum=0.1, eps=1e-5):
        mean, var = running_mean.clone(), running_var.clone()
        norm(x, mean, var, average_factor(momentum, num_batches), eps)
        return (mean, var) if num_batches is None else (mean, var, num_batches + 1)

    return after


# Embedding


def embedding(w, idx, *, padding_idx=None, scale_grad_by_freq=False):
    return F.embedding(idx.long(), w, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq)


def embedding_rmsnorm(w, idx, gamma=None, *, eps=1e-6):
    return F.rms_norm(w[idx.long()], w.shape[1:], gamma, eps)


def scatter_add(self, index, src, *, dim):
    return self.scatter_add(dim, index.long(), src[covered_by(index)])


def scatter(self, index, src, *, dim):
    return self.scatter(dim, index.long(), src[covered_by(index)])


def scatter_sum(src, index, *, size=None):
    size = int(index.max()) + 1 if size is None else size
    return src.new_zeros(size, *src.shape[1:]).index_add(0, index.long(), src)


def scatter_mean(src, index, *, size=None):
    size = int(index.max()) + 1 if size is None else size
    counts = torch.bincount(index.long(), minlength=size).clamp(min=1).reshape(-1, *[1] * (src.dim() - 1))
    sums = scatter_sum(src, index, size=size)
    return sums / counts if src.is_floating_point() else sums.div(counts, rounding_mode="floor")


def scatter_max(src, index, *, size=None, ties="even"):
    """The first maximum, or the first NaN, of each node; nothing is 0, and -1."""
    size = int(index.max()) + 1 if size is None else size
    first = torch.full((size, *src.shape[1:]), -1)
    for place in itertools.product(*map(range, src.shape)):
        node, best = (int(index[place[0]]), *place[1:]), None
        if first[node] >= 0:
            best = src[(int(first[node]), *place[1:])].item()
        value = src[place].item()
        if best is None or value > best or (math.isnan(value) and not math.isnan(best)):
            first[node] = place[0]
    if ties == "first" or not src.is_floating_point():
        picked = src.gather(0, first.clamp(min=0)) if len(src) else src.new_zeros(first.shape)
    else:
        at = index.long().reshape(-1, *[1] * (src.dim() - 1)).expand(src.shape)
        picked = src.new_full(first.shape, math.nan).scatter_reduce(0, at, src, "amax", include_self=False)
    return torch.where(first >= 0, picked, 0), first


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


def covered_by(index):
    """The part of `src` that is read: PyTorch has no gradient for a larger `src`, ours is 0 outside."""
    return tuple(slice(0, size) for size in index.shape)


# Utility


def cast(x, *, dtype):
    target = DTYPES[dtype]
    if not x.is_floating_point() or target.is_floating_point or target == torch.bool:
        return x.to(target)
    info = torch.iinfo(target)
    return torch.tensor([saturate(v, info) for v in x.flatten().tolist()], dtype=target).reshape(x.shape)


def saturate(value, info):
    if math.isnan(value):
        return 0
    if value >= info.max:
        return info.max
    return int(value) if value > info.min else info.min


def clamp(x, min=None, max=None):
    return torch.clamp(x, min, max)


def argmax(x, *, dim=None, keepdim=False):
    return torch.argmax(x, dim, keepdim)


def argmin(x, *, dim=None, keepdim=False):
    return torch.argmin(x, dim, keepdim)


def dropout(x, *, p=0.5, training=True):
    """Only where no random number decides."""
    assert not training or p in (0.0, 1.0)
    return x * 0.0 if training and p == 1.0 else x * 1.0


# Elementwise


def div(a, b, *, rounding="none"):
    return torch.div(a, b, rounding_mode=None if rounding == "none" else rounding)


def pow_(a, b=None, *, exponent=None):
    return torch.pow(a, exponent if b is None else b)


def lerp(a, b, weight):
    return torch.lerp(a, b, weight)


# Reductions


def prod(x, *, dims=None, keepdim=False):
    for dim in sorted((d % max(x.dim(), 1) for d in all_dims(x, dims)), reverse=True):
        x = x.prod(dim, keepdim=keepdim)
    return x


def maximum_over(reduce):
    def extremum(x, *, dim=None, keepdim=False):
        return reduce(x) if dim is None else reduce(x, dim, keepdim)

    return extremum


def over_dims(reduce):
    return lambda x, *, dims=None, keepdim=False: reduce(x, all_dims(x, dims), keepdim)


def total(x, *, dims=None, keepdim=False):
    if dims or keepdim:
        return x.sum(all_dims(x, dims), keepdim=keepdim)
    return x.sum()


def l2_norm(x, *, dims=None, keepdim=False):
    return torch.linalg.vector_norm(x, 2, dims or -1, keepdim)


def variance(x, *, dims=None, correction=1, keepdim=False):
    return torch.var(x, all_dims(x, dims), correction=correction, keepdim=keepdim)


# Indexing


def subscript(indices, tensors):
    """`"tensor:i0"` is the input i0, `{"slice": [start, stop, step]}` a slice."""
    return tuple(slice(*i["slice"]) if isinstance(i, dict) else long(tensors[i.removeprefix("tensor:")]) for i in indices)


def index(x, *, indices, **tensors):
    return x[subscript(indices, tensors)]


def index_put(self, values, *, indices, accumulate=False, **tensors):
    at = subscript(indices, tensors)
    position = torch.arange(self.numel()).reshape(self.shape)[at]
    flat, source = self.flatten(), values.expand(position.shape).flatten()
    if accumulate:
        return flat.index_add(0, position.flatten(), source).reshape(self.shape)
    last = {p: k for k, p in enumerate(position.flatten().tolist())}  # the last in row-major order wins
    where, winner = torch.tensor(list(last), dtype=torch.int64), torch.tensor(list(last.values()), dtype=torch.int64)
    return flat.index_copy(0, where, source[winner]).reshape(self.shape)


def topk(x, *, k, dim=-1, largest=True):
    """Ties by ascending index, NaN the greatest: a stable sort, where torch.topk leaves ties open."""
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def sort(x, *, dim=-1, descending=False):
    return torch.sort(x, dim=dim, descending=descending, stable=True)


# Matrix products


def gemm(a, b, c=None, *, trans_a=False, trans_b=False, alpha=1.0, beta=0.0):
    """An operand with factor 0 is not read."""
    a, b = a.t() if trans_a else a, b.t() if trans_b else b
    y = alpha * (a @ b) if alpha != 0 else a.new_zeros(a.shape[0], b.shape[1])
    return y if beta == 0 else y + beta * c


def linear(x, w, b=None):
    return F.linear(x, w, b)


ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
}


def gemm_bias(a, b, bias=None, *, trans_a=False, trans_b=False, activation="identity"):
    z = (a.t() if trans_a else a) @ (b.t() if trans_b else b)
    return ACTIVATIONS[activation](z if bias is None else z + bias)


# Optimizers: parameters p0, p1, .., the gradient of parameter i at step s is g<i>_<s>.


def optimize(optimizer, tensors, **options):
    params = [tensors[name].detach().clone().requires_grad_() for name in sorted(tensors) if name.startswith("p")]
    steps = sum(name.startswith("g0_") for name in tensors)
    groups = tensors.get("groups", [])
    groups = [{"params": [params[i] for i in members], **own(i, tensors, options)} for i, members in enumerate(groups)]
    grouped = {id(p) for group in groups for p in group["params"]}
    rule = optimizer([{"params": [p for p in params if id(p) not in grouped]}, *groups], **options)
    for step in range(steps):
        for i, param in enumerate(params):
            param.grad = tensors[f"g{i}_{step}"].detach().clone()
        if "clip_value" in tensors:
            torch.nn.utils.clip_grad_value_(params, tensors["clip_value"])
        rule.step()
    return tuple(param.detach() for param in params)


def own(i, attributes, options):
    """The options of a group: `group0_lr`, `group0_beta2`."""
    found = {name.split("_", 1)[1]: value for name, value in attributes.items() if name.startswith(f"group{i}_")}
    if "weight_decay" in options and "wd" in found:
        found["weight_decay"] = found.pop("wd")
    if "beta1" in found or "beta2" in found:
        found["betas"] = tuple(found.pop(f"beta{k + 1}", beta) for k, beta in enumerate(options["betas"]))
    return found


def sgd(*, lr, momentum=0.0, dampening=0.0, nesterov=False, wd=0.0, maximize=False, **tensors):
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": wd, "maximize": maximize}
    return optimize(torch.optim.SGD, tensors, lr=lr, **options)


def adam(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.0, amsgrad=False, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "amsgrad": amsgrad, "maximize": maximize}
    return optimize(torch.optim.Adam, tensors, lr=lr, betas=(beta1, beta2), **options)


def adamw(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.01, amsgrad=False, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "amsgrad": amsgrad, "maximize": maximize}
    return optimize(torch.optim.AdamW, tensors, lr=lr, betas=(beta1, beta2), **options)


def rmsprop(*, lr=1e-2, alpha=0.99, eps=1e-8, wd=0.0, momentum=0.0, centered=False, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "momentum": momentum, "centered": centered, "maximize": maximize}
    return optimize(torch.optim.RMSprop, tensors, lr=lr, alpha=alpha, **options)


def adagrad(*, lr=1e-2, lr_decay=0.0, wd=0.0, initial_accumulator=0.0, eps=1e-10, maximize=False, **tensors):
    options = {"weight_decay": wd, "initial_accumulator_value": initial_accumulator, "eps": eps, "maximize": maximize}
    return optimize(torch.optim.Adagrad, tensors, lr=lr, lr_decay=lr_decay, **options)


class Lars(torch.optim.Optimizer):
    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum, wd = group["lr"], group["momentum"], group["wd"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                w, n = p.norm(), g.norm()
                is_plain = group["skip"] or w == 0 or n == 0
                ratio = 1.0 if is_plain else group["trust"] * w / (n + wd * w + group["eps"])
                u = ratio * lr * (g + wd * p)
                b = self.state[p]["b"] = momentum * self.state[p].get("b", torch.zeros_like(p)) + u
                p -= momentum * b + u if group["nesterov"] else b


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
                v = state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g.square()
                if group["bias_correction"]:
                    m, v = m / (1 - beta1**t), v / (1 - beta2**t)
                r = m / (v.sqrt() + group["eps"]) + group["wd"] * p
                w, n = p.norm(), r.norm()
                is_plain = group["skip"] or w == 0 or n == 0
                p -= group["lr"] * (1.0 if is_plain else min(w / n, group["max_trust"])) * r


def lars(*, lr=1e-3, momentum=0.9, wd=1e-4, trust=1e-3, eps=1e-8, nesterov=False, skip=False, maximize=False, **tensors):
    options = {"momentum": momentum, "wd": wd, "trust": trust, "eps": eps, "nesterov": nesterov, "skip": skip}
    return optimize(Lars, tensors, lr=lr, maximize=maximize, **options)


def lamb(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, wd=0.01, bias_correction=True, max_trust=10.0, skip=False,
         maximize=False, **tensors):
    options = {"betas": (beta1, beta2), "eps": eps, "wd": wd, "bias_correction": bias_correction, "skip": skip}
    return optimize(Lamb, tensors, lr=lr, max_trust=float(max_trust), maximize=maximize, **options)


def muon(*, lr=1e-3, wd=0.1, momentum=0.95, nesterov=True, ns_steps=5, a=3.4445, b=-4.7750, c=2.0315, eps=1e-7,
         adjust="original", **tensors):
    """PyTorch's, without its rounding to bf16. It takes matrices only."""
    shapes = {name: x.shape for name, x in tensors.items() if name.startswith("p")}
    is_tensor = lambda x: isinstance(x, torch.Tensor)
    matrices = {name: x.reshape(x.shape[0], -1) if is_tensor(x) else x for name, x in tensors.items()}
    options = {"momentum": momentum, "nesterov": nesterov, "ns_coefficients": (a, b, c), "eps": eps, "ns_steps": ns_steps}
    rounded, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone
    try:
        found = optimize(torch.optim.Muon, matrices, lr=lr, weight_decay=wd, adjust_lr_fn=adjust, **options)
    finally:
        torch.Tensor.bfloat16 = rounded
    return tuple(p.reshape(shapes[f"p{i}"]) for i, p in enumerate(found))


def with_grads(tensors):
    params = [torch.zeros_like(g).requires_grad_() for g in tensors.values()]
    for param, grad in zip(params, tensors.values()):
        param.grad = grad.detach().clone()
    return params


def clip_norm(*, max_norm, norm_type=2.0, error_if_nonfinite=False, **tensors):
    params = with_grads(tensors)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm, float(norm_type), error_if_nonfinite)
    return *(param.grad for param in params), norm


def clip_value(*, clip, **tensors):
    params = with_grads(tensors)
    torch.nn.utils.clip_grad_value_(params, clip)
    return tuple(param.grad for param in params)


def in_place(change):
    """The reference of an op that changes a copy of `x`."""

    def reference(x, *inputs, **named):
        y = x.clone()
        change(y, *inputs, **named)
        return y

    return "", functools.wraps(change)(reference)


def unscaled(*, scale, **grads):
    """The gradients without the scale, and the scale afterwards: that of a GradScaler with PyTorch's defaults."""
    grads = [g.clone() for g in grads.values()]
    found, current, tracker = torch.zeros(1), torch.tensor([scale]), torch.zeros(1, dtype=torch.int32)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, 1 / current)
    torch._amp_update_scale_(current, tracker, found, 2.0, 0.5, 2000)
    return (*grads, current.reshape(()))


def updated(*, scale, growth, backoff, interval, **grads):
    """Scale and counter after three steps with the same gradients."""
    current, tracker = torch.tensor([scale]), torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_([g.clone() for g in grads.values()], found, 1 / current)
        torch._amp_update_scale_(current, tracker, found, growth, backoff, interval)
    return current.reshape(()), tracker.reshape(())


def unary(f):
    return "x", lambda x: f(x)


def binary(f, grads="a b"):
    return grads, lambda a, b: f(a, b)


# name: (the inputs that have a gradient, the reference); "x*" stands for x0, x1, ..
OPS = {
    # activation
    "relu": unary(F.relu),
    "leaky_relu": ("x", lambda x, *, slope=0.01: F.leaky_relu(x, slope)),
    "sigmoid": unary(torch.sigmoid),
    "tanh": unary(torch.tanh),
    "gelu": ("x", lambda x, *, approximate="none": F.gelu(x, approximate=approximate)),
    "silu": unary(F.silu),
    "softmax": ("x", lambda x, *, dim=-1: F.softmax(x, dim)),
    "elu": ("x", lambda x, *, alpha=1.0: exponential_unit(x, alpha)),
    "mish": unary(F.mish),
    "softplus": ("x", lambda x, *, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold)),
    "hardswish": unary(F.hardswish),
    "relu6": unary(lambda x: hardtanh(x, min=0.0, max=6.0)),
    "selu": unary(lambda x: exponential_unit(x, SELU_ALPHA, SELU_SCALE)),
    "celu": ("x", lambda x, *, alpha=1.0: exponential_unit(x, alpha, width=alpha)),
    "hardtanh": ("x", hardtanh),
    "hardsigmoid": unary(hardsigmoid),
    "threshold": ("x", lambda x, *, threshold, value: F.threshold(x, threshold, value)),
    "relu_squared": unary(lambda x: F.relu(x).square()),
    "log_softmax": ("x", lambda x, *, dim=-1: F.log_softmax(x, dim)),
    "swiglu": ("gate up", lambda gate, up: F.silu(gate) * up),
    "silu_and_mul": unary(lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
    # loss
    "mse_loss": ("a t", lambda a, t, *, reduction="mean": F.mse_loss(a, t, reduction=reduction)),
    "cross_entropy": ("logits", cross_entropy),
    "nll_loss": ("logp", nll_loss),
    "bce_loss": ("p", bce_loss),
    "smooth_l1_loss": ("a", lambda a, t, *, beta=1.0, reduction="mean": F.smooth_l1_loss(a, t, beta=beta, reduction=reduction)),
    "focal_loss": ("x", focal_loss),
    "triplet_loss": ("a p n", triplet_loss),
    "contrastive_loss": ("x1 x2", contrastive_loss),
    "bce_with_logits": ("x", bce_with_logits),
    "l1_loss": ("a", lambda a, t, *, reduction="mean": F.l1_loss(a, t, reduction=reduction)),
    "huber_loss": ("a", lambda a, t, *, delta=1.0, reduction="mean": F.huber_loss(a, t, delta=delta, reduction=reduction)),
    "kl_div": (
        "input",
        lambda input, target, *, log_target=False, reduction="mean": F.kl_div(
            input, target, log_target=log_target, reduction=reduction
        ),
    ),
    # normalisation
    "layer_norm": ("x weight bias", layer_norm),
    "rms_norm": ("x weight", rms_norm),
    "batch_norm": ("x weight bias", batch_norm),
    "group_norm": ("x weight bias", group_norm),
    "instance_norm": ("x weight bias", instance_norm),
    "batch_norm_running": ("", running(lambda x, mean, var, m, eps: F.batch_norm(x, mean, var, None, None, True, m, eps))),
    "instance_norm_running": ("", running(lambda x, mean, var, m, eps: F.instance_norm(x, mean, var, None, None, True, m, eps))),
    # embedding
    "embedding": ("w", embedding),
    "gather": ("x", lambda x, index, *, dim: torch.gather(x, dim, index.long())),
    "scatter_add": ("self src", scatter_add),
    "embedding_rmsnorm": ("w gamma", embedding_rmsnorm),
    # graph
    "scatter_sum": ("src", scatter_sum),
    "scatter_mean": ("src", scatter_mean),
    "scatter_max": ("src", scatter_max),
    # sequence
    "apply_rotary_embedding": ("q k", rotary),
    "sample_logits": ("", sample_logits),
    # utility
    "t": unary(lambda x: x.mT),
    "permute": ("x", lambda x, *, perm: x.permute(perm)),
    "copy": unary(torch.clone),
    "contiguous": unary(torch.clone),
    "full": ("", lambda *, shape, value, dtype=None: torch.full(shape, value, dtype=DTYPES[dtype or "f64"])),
    "cast": ("x", cast),
    "concat": ("x*", lambda *, dim, **xs: torch.cat(list(xs.values()), dim)),
    "broadcast_to": ("x", lambda x, *, shape: x.broadcast_to(shape)),
    "sum_to_size": ("x", lambda x, *, shape: x.sum_to_size(shape)),
    "clamp": ("x min max", clamp),
    "where_cond": ("a b", lambda cond, a, b: torch.where(cond, a, b)),
    "argmax": ("", argmax),
    "argmin": ("", argmin),
    "reshape": ("x", lambda x, *, shape: x.reshape(shape)),
    "transpose": ("x", lambda x, *, dim0, dim1: x.transpose(dim0, dim1)),
    "narrow": ("x", lambda x, *, dim, start, length: x.narrow(dim, start, length)),
    "dropout": ("x", dropout),
    # unary; the steps have gradient 0, which a tape drops
    **{
        name: unary(getattr(torch, name))
        for name in "neg abs exp log sqrt rsqrt sin cos square frac reciprocal expm1 log1p erf".split()
    },
    **{name: ("", unary(getattr(torch, name))[1]) for name in "floor ceil trunc round sign".split()},
    # binary
    "add": ("a b", lambda a, b, *, alpha=1: torch.add(a, b, alpha=alpha)),
    "sub": ("a b", lambda a, b, *, alpha=1: torch.sub(a, b, alpha=alpha)),
    "mul": binary(torch.mul),
    "div": ("a b", div),
    "pow": ("a b", pow_),
    "maximum": binary(torch.maximum),
    "minimum": binary(torch.minimum),
    **{name: binary(getattr(torch, name), "") for name in "eq ne lt gt le ge".split()},
    # fused_pointwise
    "addcmul": ("s a b", lambda s, a, b, *, value=1: torch.addcmul(s, a, b, value=value)),
    "addcdiv": ("s a b", lambda s, a, b, *, value=1: torch.addcdiv(s, a, b, value=value)),
    "lerp": ("a b weight", lerp),
    # reduction
    "sum": ("x", total),
    "mean": ("x", over_dims(torch.mean)),
    "prod": ("x", prod),
    "amax": ("x", over_dims(torch.amax)),
    "amin": ("x", over_dims(torch.amin)),
    "max": ("x", maximum_over(torch.max)),
    "min": ("x", maximum_over(torch.min)),
    "l2_norm": ("x", l2_norm),
    "cumsum": ("x", lambda x, *, dim: torch.cumsum(x, dim)),
    "logsumexp": ("x", over_dims(torch.logsumexp)),
    "var": ("x", variance),
    # indexing
    "index_select": ("x", lambda x, index, *, dim: torch.index_select(x, dim, index.long())),
    "index_add": ("self src", lambda self, index, src, *, dim, alpha=1: self.index_add(dim, index.long(), src, alpha=alpha)),
    "select": ("x", lambda x, *, dim, index: x.select(dim, index)),
    "index": ("x", index),
    "index_put": ("self values", index_put),
    "topk": ("x", topk),
    "sort": ("x", sort),
    "scatter": ("self src", scatter),
    # matmul
    "gemm": ("a b c", gemm),
    "matmul": binary(torch.matmul),
    "linear": ("x w b", linear),
    # gemm_bias
    "gemm_bias": ("a b bias", gemm_bias),
    # pooling
    **{f"max_pool{n}d": ("x", max_pool(n)) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": ("x", avg_pool(n)) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": ("x", adaptive_max_pool(n)) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": ("x", adaptive_avg_pool(n)) for n in (1, 2, 3)},
    "global_max_pool2d": ("x", lambda x, *, return_indices=True: adaptive_max_pool(2)(x, output_size=[1, 1])),
    "global_avg_pool2d": unary(lambda x: F.adaptive_avg_pool2d(x, 1)),
    # optimizer
    "sgd": ("", sgd),
    "adam": ("", adam),
    "adamw": ("", adamw),
    "rmsprop": ("", rmsprop),
    "adagrad": ("", adagrad),
    "lars": ("", lars),
    "lamb": ("", lamb),
    "muon": ("", muon),
    "clip_grad_norm": ("", clip_norm),
    "clip_grad_value": ("", clip_value),
    # scalars
    "add_scalar": ("x", lambda x, *, scalar: x + scalar),
    "sub_scalar": ("x", lambda x, *, scalar: x - scalar),
    "mul_scalar": ("x", lambda x, *, scalar: x * scalar),
    "div_scalar": ("x", lambda x, *, scalar: x / scalar),
    "rsub_scalar": ("x", lambda x, *, scalar: scalar - x),
    "rdiv_scalar": ("x", lambda x, *, scalar: scalar / x),
    "rpow_scalar": ("x", lambda x, *, scalar: torch.pow(scalar, x)),
    # shapes
    "flatten": ("x", lambda x, *, first=0, last=-1: torch.flatten(x, first, last)),
    "slice": ("x", lambda x, *, dim, start, stop, step: x[(slice(None),) * (dim % x.dim()) + (slice(start, stop, step),)]),
    "split": ("x", lambda x, *, size, dim: torch.split(x, size, dim)),
    "squeeze": ("x", lambda x, *, dim: torch.squeeze(x, dim)),
    "unsqueeze": ("x", lambda x, *, dim: torch.unsqueeze(x, dim)),
    "stack": ("x*", lambda *, dim, **xs: torch.stack(list(xs.values()), dim)),
    "logical_not": ("", lambda x: torch.logical_not(x)),
    "logical_and": binary(torch.logical_and, ""),
    "logical_or": binary(torch.logical_or, ""),
    "nonzero": ("", lambda x: torch.nonzero(x, as_tuple=True)),
    "not_finite": ("", lambda x: ~torch.isfinite(x)),
    "global_max_pool3d": ("x", lambda x, *, return_indices=True: adaptive_max_pool(3)(x, output_size=[1, 1, 1])),
    "global_avg_pool3d": unary(lambda x: F.adaptive_avg_pool3d(x, 1)),
    # in_place
    "fill_": in_place(lambda x, *, value: x.fill_(value)),
    "copy_": in_place(lambda x, src: x.copy_(src)),
    "add_": in_place(lambda x, src: x.add_(src)),
    "mul_": in_place(lambda x, src: x.mul_(src)),
    "scatter_add_": in_place(lambda x, index, src, *, dim: x.scatter_add_(dim, index.long(), src)),
    "index_add_": in_place(lambda x, index, src, *, dim, alpha=1: x.index_add_(dim, index.long(), src, alpha=alpha)),
    "index_put_": (
        "",
        lambda x, values, *, indices, accumulate=False, **tensors: index_put(
            x, values, indices=indices, accumulate=accumulate, **tensors
        ),
    ),
    "accumulate_grad": ("", lambda y, x: y + x),
    "unscale_": ("", unscaled),
    "grad_scaler": ("", updated),
}
