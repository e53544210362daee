"""Recurrent ops: single steps and sequences, in one direction."""

import torch
import torch.nn.functional as F

from common import OPS, i64, integers, normal


def weights(w_ih, w_hh, b_ih, b_hh, *more):
    """PyTorch has both biases or none."""
    if b_ih is None and b_hh is None:
        return False, [w_ih, w_hh, *more]
    zeros = torch.zeros(w_ih.shape[0], dtype=w_ih.dtype)
    return True, [w_ih, w_hh, zeros if b_ih is None else b_ih, zeros if b_hh is None else b_hh, *more]


def initial(given, x, size):
    return (torch.zeros(x.shape[1], size, dtype=x.dtype) if given is None else given).unsqueeze(0)


def ordered(x, reverse):
    return x.flip(0) if reverse else x


def packed(cell, x, lengths, start, all, has_biases, reverse):
    """The results of PyTorch's module for packed sequences, in one direction."""
    width, state = all[0].shape[0] // GATES[cell], all[1].shape[1]
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    more = {"proj_size": state} if cell == "lstm" and state != width else {}
    module = kind(x.shape[2], width, bias=has_biases, bidirectional=reverse, dtype=x.dtype, **more)
    names = [name for name, _ in module.named_parameters() if name.endswith("reverse") == reverse]
    values = dict(module.named_parameters()) | dict(zip(names, all, strict=True))
    if reverse:
        start = tuple(torch.cat([torch.zeros_like(s), s]) for s in start)
    sequence = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    start = start if cell == "lstm" else start[0]
    y, last = torch.func.functional_call(module, values, (sequence, start))
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=x.shape[0])
    last = last if cell == "lstm" else (last,)
    return (y[..., -state:], *[s[-1] for s in last])


def lstm(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, c=None, w_hr=None, lengths=None, *, reverse=False):
    width, state = w_ih.shape[0] // 4, w_hh.shape[1]
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh, *([] if w_hr is None else [w_hr]))
    start = (initial(h, x, state), initial(c, x, width))
    if lengths is not None:
        return packed("lstm", x, lengths, start, all, has_biases, reverse)
    y, last, cell = torch.lstm(ordered(x, reverse), start, all, has_biases, 1, 0.0, False, False, False)
    return ordered(y, reverse), last[0], cell[0]


def gru(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, lengths=None, *, reverse=False):
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh)
    if lengths is not None:
        return packed("gru", x, lengths, [initial(h, x, w_hh.shape[1])], all, has_biases, reverse)
    y, last = torch.gru(ordered(x, reverse), initial(h, x, w_hh.shape[1]), all, has_biases, 1, 0.0, False, False, False)
    return ordered(y, reverse), last[0]


def rnn(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, lengths=None, *, nonlinearity="tanh", reverse=False):
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh)
    if lengths is not None:
        return packed("rnn", x, lengths, [initial(h, x, w_hh.shape[1])], all, has_biases, reverse)
    run = torch.rnn_tanh if nonlinearity == "tanh" else torch.rnn_relu
    y, last = run(ordered(x, reverse), initial(h, x, w_hh.shape[1]), all, has_biases, 1, 0.0, False, False, False)
    return ordered(y, reverse), last[0]


def lstm_cell(x, w_ih, w_hh, h, c, b_ih=None, b_hh=None, w_hr=None):
    if w_hr is None:
        return torch.lstm_cell(x, (h, c), *weights(w_ih, w_hh, b_ih, b_hh)[1])
    return lstm(x.unsqueeze(0), w_ih, w_hh, b_ih, b_hh, h, c, w_hr)[1:]


def gru_cell(x, w_ih, w_hh, h, b_ih=None, b_hh=None):
    return torch.gru_cell(x, h, *weights(w_ih, w_hh, b_ih, b_hh)[1])


def rnn_cell(x, w_ih, w_hh, h, b_ih=None, b_hh=None, *, nonlinearity="tanh"):
    run = torch.rnn_tanh_cell if nonlinearity == "tanh" else torch.rnn_relu_cell
    return run(x, h, *weights(w_ih, w_hh, b_ih, b_hh)[1])


def conv_lstm_cell(x, w_x, w_h, h, c, b=None):
    a = F.conv2d(x, w_x, b, padding="same") + F.conv2d(h, w_h, padding="same")
    i, f, g, o = a.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def conv_lstm(x, w_x, w_h, b=None, h=None, c=None, *, reverse=False):
    zeros = torch.zeros(x.shape[1], w_h.shape[1], *x.shape[3:], dtype=x.dtype)
    h, c, states = zeros if h is None else h, zeros if c is None else c, []
    for step in ordered(x, reverse):
        h, c = conv_lstm_cell(step, w_x, w_h, h, c, b)
        states.append(h)
    return ordered(torch.stack(states), reverse), h, c


def module(kind, gates):
    """Layers and directions; parameters are inputs with the names of the state dictionary."""

    def reference(x, h=None, c=None, lengths=None, *, num_layers=1, bidirectional=False, batch_first=False, nonlinearity=None, **weights):
        width, state = weights["weight_ih_l0"].shape[0] // gates, weights["weight_hh_l0"].shape[1]
        more = {"proj_size": state} if state != width else {}
        more |= {} if nonlinearity is None else {"nonlinearity": nonlinearity}
        layers = kind(
            x.shape[2],
            width,
            num_layers,
            bias="bias_ih_l0" in weights,
            batch_first=batch_first,
            bidirectional=bidirectional,
            dtype=x.dtype,
            **more,
        )
        start = None if h is None else (h, c) if gates == 4 else h
        steps = x.shape[1 if batch_first else 0]
        if lengths is not None:
            x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        y, last = torch.func.functional_call(layers, weights, (x, start))
        if lengths is not None:
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first, total_length=steps)
        return (y, *last) if gates == 4 else (y, last)

    return reference


OF_WEIGHTS = "w_ih w_hh b_ih b_hh h c w_hr"
OPS |= {
    "lstm": (f"x {OF_WEIGHTS}", lstm),
    "lstm_cell": (f"x {OF_WEIGHTS}", lstm_cell),
    "gru": (f"x {OF_WEIGHTS}", gru),
    "gru_cell": (f"x {OF_WEIGHTS}", gru_cell),
    "rnn": (f"x {OF_WEIGHTS}", rnn),
    "rnn_cell": (f"x {OF_WEIGHTS}", rnn_cell),
    "conv_lstm": ("x w_x w_h b h c", conv_lstm),
    "conv_lstm_cell": ("x w_x w_h b h c", conv_lstm_cell),
}

MODULES = {"Lstm": (torch.nn.LSTM, 4), "Gru": (torch.nn.GRU, 3), "Rnn": (torch.nn.RNN, 1)}
OPS |= {name: ("x h c weight_* bias_*", module(*of)) for name, of in MODULES.items()}

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def operands(cell, x, width, *, state=None, without=()):
    """x `[.., B, I]`, and weights that keep sums small."""
    gates, rows, size = GATES[cell] * width, x[-2], width if state is None else state
    all = {"x": normal(*x), "w_ih": normal(gates, x[-1]) * 0.5, "w_hh": normal(gates, size) * 0.5}
    all |= {"b_ih": normal(gates), "b_hh": normal(gates), "h": normal(rows, size)}
    all |= {"c": normal(rows, width)} if cell == "lstm" else {}
    all |= {} if state is None else {"w_hr": normal(state, width)}
    return {name: t for name, t in all.items() if name not in without}


def layered(name, x, width, *, num_layers=1, bidirectional=False, batch_first=False, state=None, bias=True, begins=True, lengths=None):
    """The inputs and attributes of a module's case."""
    kind, gates = MODULES[name]
    more = {} if state is None else {"proj_size": state}
    shapes = kind(x[2], width, num_layers, bias=bias, bidirectional=bidirectional, **more).state_dict()
    inputs = {"x": normal(*x)}
    all, rows = num_layers * (1 + bidirectional), x[0 if batch_first else 1]
    if begins:
        inputs |= {"h": normal(all, rows, state or width)} | ({"c": normal(all, rows, width)} if gates == 4 else {})
    if lengths is not None:
        inputs |= {"lengths": i64(lengths)}
    inputs |= {name: normal(*w.shape) * 0.5 for name, w in shapes.items()}
    return inputs, dict(num_layers=num_layers, bidirectional=bidirectional, batch_first=batch_first)


def modules(out):
    for name in MODULES:
        for case, given in {
            "plain": dict(begins=False),
            "two_layers": dict(num_layers=2),
            "three_layers": dict(num_layers=3, bias=False, begins=False),
            "both_directions": dict(bidirectional=True),
            "batch_first": dict(num_layers=2, bidirectional=True, batch_first=True, begins=False),
            "lengths": dict(num_layers=2, bidirectional=True, lengths=[2, 4, 1]),
        }.items():
            if case.endswith("layers") and name != "Lstm":
                continue
            x = (3, 4, 2) if case == "batch_first" else (4, 3, 2)
            inputs, attributes = layered(name, x, 2, **given)
            out.case(f"{name}/{case}", inputs, **attributes)
    inputs, attributes = layered("Lstm", (3, 2, 2), 3, num_layers=2, bidirectional=True, state=2)
    out.case("Lstm/projection", inputs, **attributes)
    inputs, attributes = layered("Rnn", (3, 2, 2), 2, num_layers=2)
    out.case("Rnn/relu", inputs, nonlinearity="relu", **attributes)


def images(steps, rows, inputs, channels, size, of_input, of_state, without=()):
    x = [*([] if steps is None else [steps]), rows, inputs, *size]
    all = {"x": normal(*x), "w_x": normal(4 * channels, inputs, *of_input) * 0.5}
    all |= {"w_h": normal(4 * channels, channels, *of_state) * 0.5, "b": normal(4 * channels)}
    all |= {name: normal(rows, channels, *size) for name in ["h", "c"]}
    return {name: t for name, t in all.items() if name not in without}


def cases(out):
    for cell in GATES:
        out.case(f"{cell}/plain", operands(cell, (5, 3, 4), 2))
        out.case(f"{cell}/reverse", operands(cell, (3, 2, 3), 4), reverse=True)
        out.case(f"{cell}/zeros", operands(cell, (3, 2, 3), 2, without=["h", "c"]))
        out.case(f"{cell}/no_biases", operands(cell, (2, 2, 3), 3, without=["b_ih", "b_hh"]))
        out.case(f"{cell}/input_bias", operands(cell, (2, 1, 3), 3, without=["b_hh"]))
        out.case(f"{cell}/hidden_bias", operands(cell, (2, 1, 3), 3, without=["b_ih", "c"]))
        out.case(f"{cell}/one_step", operands(cell, (1, 2, 2), 3))
        out.case(f"{cell}/many_steps", operands(cell, (131, 1, 1), 2))
        out.case(f"{cell}/empty", operands(cell, (2, 0, 3), 2), grads=[])
        out.case(f"{cell}_cell/plain", operands(cell, (3, 4), 5))
        out.case(f"{cell}_cell/no_biases", operands(cell, (2, 3), 2, without=["b_ih", "b_hh"]))
        out.case(f"{cell}_cell/single", operands(cell, (1, 1), 1))
        good = operands(cell, (2, 3, 4), 2)
        wrong = {"x": normal(3, 4), "w_ih": normal(GATES[cell] * 2, 3), "w_hh": normal(GATES[cell] * 2, 3), "b_ih": normal(3), "h": normal(2, 2)}
        for name in wrong if cell == "lstm" else ["h"]:
            out.error(f"{cell}/wrong_{name}", "Shape", good | {name: wrong[name]})
        out.error(f"{cell}/no_steps", "Attr", good | {"x": normal(0, 3, 4)})
        out.error(f"{cell}/mixed", "Dtype", good | {"h": normal(3, 2).float()})
        out.error(f"{cell}_cell/wrong_h", "Shape", operands(cell, (3, 4), 2) | {"h": normal(3, 1)})
    lengths = {"lengths": i64([3, 1, 4])}
    for cell in GATES:
        out.case(f"{cell}/lengths", operands(cell, (4, 3, 2), 2) | lengths)
        out.case(f"{cell}/lengths_reverse", operands(cell, (5, 3, 2), 3) | lengths, reverse=True)
    for cell in ["gru"]:
        good = operands(cell, (4, 3, 2), 2)
        out.error(f"{cell}/few_lengths", "Shape", good | {"lengths": i64([3, 1])})
        out.error(f"{cell}/float_lengths", "Dtype", good | {"lengths": normal(3)})
        out.error(f"{cell}/length_0", "Index", good | {"lengths": i64([3, 0, 4])})
        out.error(f"{cell}/length_5", "Index", good | {"lengths": i64([3, 1, 5])})
    out.case("lstm/lengths_projection", operands("lstm", (4, 3, 1), 3, state=2) | lengths, reverse=True)
    for cell in ["rnn", "rnn_cell"]:
        x = (4, 2, 3) if cell == "rnn" else (2, 3)
        out.case(f"{cell}/relu", operands("rnn", x, 3), nonlinearity="relu")
    out.case("lstm/projection", operands("lstm", (4, 2, 3), 4, state=2))
    out.case("lstm/projection_reverse", operands("lstm", (2, 2, 1), 2, state=3, without=["h", "b_hh"]), reverse=True)
    out.case("lstm_cell/projection", operands("lstm", (2, 3), 4, state=2))
    out.error("lstm/wrong_c", "Shape", operands("lstm", (2, 3, 4), 2) | {"c": normal(3, 1)})
    out.error("lstm/wrong_w_hr", "Shape", operands("lstm", (2, 3, 4), 2, state=1) | {"w_hr": normal(1, 3)})
    out.error("lstm/three_gates", "Shape", operands("lstm", (2, 3, 4), 2) | {"w_ih": normal(7, 4)})
    out.error("gru_cell/integers", "Dtype", {n: integers(*t.shape) for n, t in operands("gru", (3, 4), 2).items()})
    out.case("conv_lstm/plain", images(3, 2, 2, 2, (4, 3), (3, 3), (3, 3)))
    out.case("conv_lstm/reverse", images(2, 1, 1, 2, (3, 4), (1, 3), (3, 1)), reverse=True)
    out.case("conv_lstm/zeros", images(2, 1, 2, 1, (3, 3), (3, 3), (3, 3), without=["h", "c", "b"]))
    out.case("conv_lstm/one_step", images(1, 2, 1, 1, (2, 3), (3, 5), (1, 1)))
    out.case("conv_lstm_cell/plain", images(None, 2, 3, 2, (4, 3), (3, 3), (5, 3)))
    out.case("conv_lstm_cell/no_bias", images(None, 1, 1, 1, (2, 2), (3, 3), (3, 3), without=["b"]))
    good = images(2, 1, 2, 1, (3, 3), (3, 3), (3, 3))
    out.error("conv_lstm/even", "Attr", good | {"w_x": normal(4, 2, 2, 3)})
    out.error("conv_lstm/even_hidden", "Attr", good | {"w_h": normal(4, 1, 3, 4)})
    out.error("conv_lstm/no_steps", "Attr", good | {"x": normal(0, 1, 2, 3, 3)})
    for name, t in {"x": normal(1, 2, 3, 3), "w_x": normal(4, 3, 3, 3), "w_h": normal(4, 2, 3, 3), "b": normal(3), "h": normal(1, 1, 3, 2)}.items():
        out.error(f"conv_lstm/wrong_{name}", "Shape", good | {name: t})
    modules(out)
    # Several slices of hidden units, several blocks of rows.
    for cell in GATES:
        out.case(f"{cell}/wide", operands(cell, (2, 19, 1), 21))
        out.case(f"{cell}/words", operands(cell, (3, 17, 1), 24, without=["c"]), reverse=True)
