"""Messages along the edges of graphs."""

import torch
import torch.nn.functional as F

from common import NAN, OPS, INF, f64, i32, i64, integers, normal


def messages_of(x, source, target, edge_attr, x_dst, w1, b1, w2, b2, message):
    if message == "add_e":
        return x[source] + edge_attr
    if message != "mlp":
        return x[source]
    ends = [x[source], (x if x_dst is None else x_dst)[target]]
    hidden = F.linear(torch.cat(ends if edge_attr is None else [*ends, edge_attr], -1), w1, b1).relu()
    return F.linear(hidden, w2, b2)


def message_passing(
    x, edge_index, edge_weight=None, edge_attr=None, x_dst=None, w1=None, b1=None, w2=None, b2=None,
    *, message="copy", reduce="sum", nodes=None,
):
    source, target = edge_index.long()
    m = messages_of(x, source, target, edge_attr, x_dst, w1, b1, w2, b2, message)
    m = m if edge_weight is None else m * edge_weight.unsqueeze(-1)
    out = m.new_zeros(len(x) if nodes is None else nodes, *m.shape[1:])
    if reduce == "sum":
        return out.index_add(0, target, m)
    at = target.reshape(-1, *[1] * (m.dim() - 1)).expand(m.shape)
    if reduce == "mean":
        return out.scatter_reduce(0, at, m, "mean", include_self=False)
    # NaN, because an initial value that equals the maximum would share its gradient.
    largest = torch.full_like(out, NAN).scatter_reduce(0, at, m, "amax", include_self=False)
    is_target = torch.bincount(target, minlength=len(out)).reshape(-1, *[1] * (m.dim() - 1)) > 0
    return torch.where(is_target, largest, 0)


OPS |= {
    "message_passing": ("x edge_weight edge_attr x_dst w1 b1 w2 b2", message_passing),
}

# Self loops, double edges, an isolated node (3), and a source without a target's role (5).
EDGES = [[0, 1, 1, 5, 2, 2, 4, 0, 5], [1, 1, 1, 0, 4, 2, 2, 1, 0]]


def cases(out):
    for message in "copy", "mul_w", "add_e", "mlp":
        for reduce in "sum", "mean", "max":
            passes(out, message, reduce)
    special(out)
    wrong_graphs(out)


def passes(out, message, reduce):
    edges, name = i64(EDGES), f"message_passing/{message}_{reduce}"
    count = len(EDGES[0])
    if message == "mlp":
        network = {"w1": normal(4, 6), "b1": normal(4), "w2": normal(4, 4), "b2": normal(4)}
        out.case(name, {"x": normal(6, 3), "edge_index": edges} | network, message=message, reduce=reduce)
        more = {"edge_weight": normal(count), "edge_attr": normal(count, 2), "x_dst": normal(5, 3), "w1": normal(4, 8)}
        inputs = {"x": normal(6, 3), "edge_index": edges} | network | more
        out.case(f"{name}_all", inputs, message=message, reduce=reduce, nodes=5)
        bare = {"w1": normal(2, 6), "w2": normal(2, 2)}
        out.case(f"{name}_bare", {"x": normal(6, 3), "edge_index": edges} | bare, message=message, reduce=reduce)
        return
    for rest in (3,), (2, 4):
        of = {"x": normal(6, *rest), "edge_index": edges}
        weight, attributes = {"edge_weight": normal(count, *rest[:-1])}, {"edge_attr": normal(count, *rest)}
        of |= weight if message == "mul_w" else attributes if message == "add_e" else {}
        shape = "x".join(map(str, (6, *rest)))
        out.case(f"{name}_{shape}", of, message=message, reduce=reduce)
        if message == "add_e":
            out.case(f"{name}_{shape}_weighted", of | weight, message=message, reduce=reduce)
    none = {"x": normal(3, 2), "edge_index": i64([[], []])}
    none |= {"edge_weight": normal(0)} if message == "mul_w" else {"edge_attr": normal(0, 2)} if message == "add_e" else {}
    out.case(f"{name}_no_edges", none, message=message, reduce=reduce)


def special(out):
    edges = i64(EDGES)
    for reduce in "sum", "mean", "max":
        of = {"x": normal(6, 3), "edge_index": i32(EDGES)}
        out.case(f"message_passing/i32_{reduce}", of, reduce=reduce, nodes=7)
        # Node 3 has no edges.
        x = normal(6, 2)
        x[3], x[4, 0], x[5, 1] = NAN, NAN, -INF
        out.case(f"message_passing/nan_{reduce}", {"x": x, "edge_index": edges}, reduce=reduce, grads=())
    tied = f64([[1.0, 2.0], [3.0, 2.0], [3.0, 5.0], [0.0, 0.0], [3.0, 5.0], [2.0, 2.0]])
    out.case("message_passing/ties", {"x": tied, "edge_index": edges}, reduce="max")
    halves = {"x": tied, "edge_index": edges, "edge_weight": f64([3.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 3.0, 0.0])}
    out.case("message_passing/ties_of_products", halves, message="mul_w", reduce="max")


def wrong_graphs(out):
    right = {"x": normal(3, 2), "edge_index": i64([[0, 1], [2, 2]])}
    out.error("message_passing/negative", "Index", right | {"edge_index": i64([[0, -1], [2, 2]])})
    out.error("message_passing/source", "Index", right | {"edge_index": i64([[0, 3], [2, 2]])})
    out.error("message_passing/target", "Index", right, nodes=2)
    out.error("message_passing/no_nodes", "Index", right | {"x": normal(0, 2)})
    out.error("message_passing/edge_index", "Shape", right | {"edge_index": i64([0, 1])})
    out.error("message_passing/float_index", "Dtype", right | {"edge_index": f64([[0, 1], [2, 2]])})
    out.error("message_passing/weights", "Shape", right | {"edge_weight": normal(3)}, message="mul_w")
    out.error("message_passing/no_weights", "Attr", right, message="mul_w")
    out.error("message_passing/attributes", "Shape", right | {"edge_attr": normal(2, 3)}, message="add_e")
    out.error("message_passing/integers", "Dtype", right | {"x": integers(3, 2)})
    network = {"w1": normal(4, 4), "w2": normal(4, 4)}
    out.error("message_passing/w1", "Shape", right | network | {"w1": normal(4, 5)}, message="mlp")
    out.error("message_passing/w2", "Shape", right | network | {"w2": normal(3, 4)}, message="mlp")
    out.error("message_passing/x_dst", "Shape", right | network | {"x_dst": normal(2, 2)}, message="mlp")
