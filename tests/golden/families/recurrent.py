"""Recurrent ops: single steps and sequences, in one direction."""

import torch
import torch.nn.functional as F

from common import OPS, integers, normal


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


def lstm(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, c=None, w_hr=None, *, reverse=False):
    width, state = w_ih.shape[0] // 4, w_hh.shape[1]
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh, *([] if w_hr is None else [w_hr]))
    start = (initial(h, x, state), initial(c, x, width))
    y, last, cell = torch.lstm(ordered(x, reverse), start, all, has_biases, 1, 0.0, False, False, False)
    return ordered(y, reverse), last[0], cell[0]


def gru(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, *, reverse=False):
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh)
    y, last = torch.gru(ordered(x, reverse), initial(h, x, w_hh.shape[1]), all, has_biases, 1, 0.0, False, False, False)
    return ordered(y, reverse), last[0]


def rnn(x, w_ih, w_hh, b_ih=None, b_hh=None, h=None, *, nonlinearity="tanh", reverse=False):
    has_biases, all = weights(w_ih, w_hh, b_ih, b_hh)
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

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def operands(cell, x, width, *, state=None, without=()):
    """x `[.., B, I]`, and weights that keep sums small."""
    gates, rows, size = GATES[cell] * width, x[-2], width if state is None else state
    all = {"x": normal(*x), "w_ih": normal(gates, x[-1]) * 0.5, "w_hh": normal(gates, size) * 0.5}
    all |= {"b_ih": normal(gates), "b_hh": normal(gates), "h": normal(rows, size)}
    all |= {"c": normal(rows, width)} if cell == "lstm" else {}
    all |= {} if state is None else {"w_hr": normal(state, width)}
    return {name: t for name, t in all.items() if name not in without}


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
        for name, t in wrong.items():
            out.error(f"{cell}/wrong_{name}", "Shape", good | {name: t})
        out.error(f"{cell}/no_steps", "Attr", good | {"x": normal(0, 3, 4)})
        out.error(f"{cell}/mixed", "Dtype", good | {"h": normal(3, 2).float()})
        out.error(f"{cell}_cell/wrong_h", "Shape", operands(cell, (3, 4), 2) | {"h": normal(3, 1)})
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
