"""isograd in PyTorch: functions, modules, compiled functions, patches, optimizers, and checks of functions."""

import isograd
import pytest

torch = pytest.importorskip("torch")

import isograd.torch as it  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from cases import OPS, arguments  # noqa: E402
from isograd import _isograd  # noqa: E402


def near(a, b, atol=1e-5):
    return torch.allclose(a, b, atol=atol, rtol=1e-4)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pairs():
    x, w = torch.randn(4, 8), torch.randn(8)
    target = torch.tensor([1, 0, 7, -100])
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    index = torch.randint(0, 4, (3, 8))
    return [
        (lambda x: it.softmax(x, -1), lambda x: F.softmax(x, -1), [x]),
        (lambda x, w: it.layer_norm(x, w, w), lambda x, w: F.layer_norm(x, (8,), w, w), [x, w]),
        (lambda x, w: it.rms_norm(x, w), lambda x, w: F.rms_norm(x, (8,), w, 1e-6), [x, w]),
        (it.swiglu, lambda a, b: F.silu(a) * b, [x, x + 1]),
        (it.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, [x, x + 1]),
        (lambda x: it.cross_entropy(x, target), lambda x: F.cross_entropy(x, target), [x]),
        (
            lambda x: it.cross_entropy(x, target, label_smoothing=0.1, reduction="sum"),
            lambda x: F.cross_entropy(x, target, label_smoothing=0.1, reduction="sum"),
            [x],
        ),
        (it.attention, F.scaled_dot_product_attention, [q, k, v]),
        (
            lambda q, k, v: it.attention(q, k, v, is_causal=True),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            [q, k, v],
        ),
        (lambda w: it.embedding(index, w), lambda w: F.embedding(index, w), [x]),
        (lambda x: it.gather(x, 0, index), lambda x: torch.gather(x, 0, index), [x]),
        (
            lambda x, s: it.scatter_add(x, 0, index, s),
            lambda x, s: torch.scatter_add(x, 0, index, s),
            [x, torch.randn(3, 8)],
        ),
    ]


@pytest.mark.parametrize("number", range(12))
def test_functions_have_pytorchs_values_and_gradients(number):
    ours, theirs, inputs = pairs()[number]
    leaves = [[t.clone().requires_grad_() for t in inputs] for _ in range(2)]
    a, b = ours(*leaves[0]), theirs(*leaves[1])
    assert near(a, b)
    dy = torch.randn_like(b)
    a.backward(dy)
    b.backward(dy)
    assert all(near(p.grad, q.grad) for p, q in zip(*leaves, strict=True))


def test_dropout_draws_by_its_seed():
    x = torch.ones(1000, requires_grad=True)
    y = it.dropout(x, 0.25, seed=7)
    assert torch.equal(y, it.dropout(x, 0.25, seed=7)) and not torch.equal(y, it.dropout(x, 0.25, seed=8))
    assert 200 < (y == 0).sum() < 300 and near(y.max(), torch.tensor(4 / 3))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert it.dropout(x, 0.25, seed=7, training=False).min() == 1


def test_second_derivatives():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: it.softmax(x, -1), [x])
    assert torch.autograd.gradgradcheck(lambda x, w: it.rms_norm(x, w), [x, w])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.bool, torch.int64])
def test_torch_and_back_in_one_place(dtype):
    x = torch.arange(12).reshape(3, 4).to(dtype)
    for view in [x, x.t(), x[1:, ::2], x.expand(2, 3, 4)]:
        t = isograd.from_dlpack(view)
        assert t.data_ptr() == view.data_ptr() and t.dtype == isograd.tensor([0], dtype=dtype).dtype
        back = torch.from_dlpack(t)
        assert back.data_ptr() == view.data_ptr() and torch.equal(back, view)
    if dtype.is_floating_point:
        isograd.mul_(x=isograd.from_dlpack(x), src=isograd.tensor(2.0).to(dtype))
        assert x[0, 1] == 2


def test_nothing_is_copied():
    x = torch.randn(4, 8)
    assert it.to_isograd(x).data_ptr() == x.data_ptr()
    assert it.to_torch(it.to_isograd(x.t())).data_ptr() == x.data_ptr()


def test_compiled_functions_have_one_graph():
    w = torch.randn(8, requires_grad=True)

    def block(x):
        return it.swiglu(it.rms_norm(x, w) * 2, x).sum()

    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert near(y, block(x))
    (expected,) = torch.autograd.grad(block(x), [x])
    y.backward()
    assert near(x.grad, expected)


def test_modules_and_optimizers_train_as_pytorchs():
    def model(norm, loss):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), norm(16), torch.nn.Linear(16, 3)), loss

    x, target = torch.randn(32, 8), torch.randint(0, 3, (32,))
    losses = []
    for norm, loss, make in [
        (torch.nn.LayerNorm, torch.nn.CrossEntropyLoss(), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        (it.LayerNorm, it.CrossEntropyLoss(), lambda p: it.Optimizer("adamw", p, lr=0.01, wd=0.1)),
    ]:
        net, loss = model(norm, loss)
        optimizer = make(net.parameters())
        for _ in range(20):
            optimizer.zero_grad()
            value = loss(net(x), target)
            value.backward()
            optimizer.step()
        losses.append(value.detach())
    assert near(losses[0], losses[1], atol=1e-4) and losses[0] < 0.8


def test_patched_models():
    class Rotated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
            self.down_proj, self.act_fn = torch.nn.Linear(16, 8), torch.nn.SiLU()

        def forward(self, x):
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    class LlamaRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.randn(8)), 1e-6

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    model = torch.nn.Sequential(LlamaRMSNorm(), Rotated(), torch.nn.LayerNorm(8))
    x = torch.randn(5, 8)
    before = model(x)
    count = it.patch(model)
    assert count == {"rms_norm": 1, "layer_norm": 1, "swiglu": 1, "geglu": 0, "cross_entropy": 0}
    assert near(model(x), before)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Qwen3"])
def test_patched_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    gpt2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    options = gpt2 if kind == "GPT2" else sizes | {"num_hidden_layers": 2}
    config = getattr(transformers, f"{kind}Config")(vocab_size=64, **options)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config)
    tokens = torch.randint(0, 64, (2, 10))

    def step():
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    before, after = step(), (it.patch(model), step())
    assert sum(after[0].values()) >= 5 and near(before[0], after[1][0])
    assert all(near(g, after[1][1][name]) for name, g in before[1].items())


def test_checks_find_what_is_wrong():
    def softmax(x, dim):
        return torch.softmax(x, dim)

    report = isograd.check(softmax, "softmax", without=["special"])
    assert report.passed, report.text
    # PyTorch's gradient of a slice with an infinity is NaN where isograd's is 0.
    assert "special" in isograd.check(softmax, "softmax").text

    def hides_nan(x, dim):
        return torch.softmax(x.nan_to_num(), dim)

    assert not isograd.check(hides_nan, "softmax").passed
    assert not isograd.check(lambda x, dim: torch.softmax(x, 0), "softmax").passed

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return dy * (1 - torch.tanh(x))

    assert not isograd.check(Wrong.apply, "tanh").passed
    assert isograd.check(torch.tanh, "tanh", dtypes=["f32", "bf16"]).passed
    assert isograd.check(lambda x, dim: isograd.softmax(x, dim), "softmax", library="isograd").passed
    with pytest.raises(ValueError, match="no check"):
        isograd.check(torch.tanh, "tanh", without=["speed"])
    assert not isograd.check(lambda x: 1 / 0, "tanh").passed


def test_modules_of_isograd_train():
    isograd.nn.seed(1)
    net = isograd.nn.Sequential(isograd.nn.Linear(8, 16), isograd.relu, isograd.nn.LayerNorm(16), isograd.nn.Linear(16, 3))
    x, target = isograd.tensor(torch.randn(32, 8)), isograd.tensor(torch.randint(0, 3, (32,)))
    optimizer = isograd.optim.AdamW(net.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = isograd.cross_entropy(logits=net(x), target=target, reduction="mean")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    state = {name: torch.from_dlpack(t).clone() for name, t in net.state_dict().items()}
    assert sorted(state)[:2] == ["0.bias", "0.weight"]
    other = isograd.nn.Sequential(isograd.nn.Linear(8, 16), isograd.relu, isograd.nn.LayerNorm(16), isograd.nn.Linear(16, 3))
    other.load_state_dict(state)
    assert other(x).tolist() == net(x).tolist()
    with pytest.raises(KeyError, match="missing"):
        other.load_state_dict({})


@pytest.mark.parametrize("name", OPS)
def test_every_op_by_pytorchs_gradcheck(name):
    op, function = OPS[name], getattr(it.ops, name)
    for inputs, attributes in _isograd.examples(name)[:2]:
        given = {key: torch.from_dlpack(t).clone() for key, t in inputs.items()}
        found = getattr(isograd, name)(**arguments(name, inputs, attributes))
        again = function(**arguments(name, {key: t.clone() for key, t in given.items()}, attributes))
        results = [y if isinstance(y, tuple) else (y,) for y in (found, again)]
        for y, z in zip(*results, strict=True):
            assert torch.equal(torch.from_dlpack(y.detach()).nan_to_num(), z.detach().nan_to_num())
        floats = [key for key, t in given.items() if t.dtype == torch.float64 and key not in op["constant"]]
        if not op["differentiable"] or op["in_place"] or not floats:
            continue
        leaves = [given[key].requires_grad_() for key in floats]

        def call(*tensors, given=given, floats=floats, attributes=attributes):
            y = function(**arguments(name, given | dict(zip(floats, tensors, strict=True)), attributes))
            return tuple(part for part in (y if isinstance(y, tuple) else (y,)) if part.requires_grad)

        assert torch.autograd.gradcheck(call, leaves, atol=1e-4)
