//! Backward passes on every device: ops with several outputs, tensors that change between forward and backward, checkpoints.

use isograd::nn::{BatchNorm1d, Forward, Init};
use isograd::ops::{Attention, Causal, MaxPool, Order, TieGrad};
use isograd::tape::{
    self, BackwardOptions, Saved, checkpoint, detect_anomaly, fuse, grad, grad_from, grad_with, record_outputs,
};
use isograd::{DType, Device, Kind, Result, Tensor, autocast, no_grad};
use isograd_tests::harness::{self, Outcome, equal, refused};
use libtest_mimic::Trial;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op, aspect, run| harness::check(device, op, aspect, run);
    vec![
        check("tape", "outputs_of_one_node", outputs_of_one_node),
        check("tape", "missing_gradients_of_outputs", missing_gradients),
        check("tape", "integer_outputs_have_no_gradient", integer_outputs),
        check("tape", "hooks_and_retain_of_outputs", hooks_and_retain),
        check("tape", "second_derivatives_of_outputs", second_derivatives),
        check("tape", "checkpointed_outputs", checkpointed_outputs),
        check("tape", "anomaly_of_an_output", anomaly_of_an_output),
        check("tape", "no_anomaly_of_masked_scores", masked_scores),
        check("tape", "printed_outputs", printed_outputs),
        check("tape", "diff_of_outputs", diff_of_outputs),
        check("tape", "gradients_of_several_results", several_results),
        check("tape", "gradients_own_their_memory", own_memory),
        check("tape", "spent_nodes_drop_hooks", spent_hooks),
        check("tape", "what_rules_read_was_changed", stale),
        check("checkpoint", "running_statistics_change_once", change_once),
        check("checkpoint", "a_held_weight_that_changed", held_weight),
        check("fuse", "functions", fused_functions),
        check("fuse", "second_derivatives", fused_second_derivatives),
        check("fuse", "refused", fused_refused),
        check("autocast", "two_losses_of_one_scope", two_losses),
    ]
}

fn leaf(value: f32, device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&[value], 1, device)?.require_grad()
}

fn items(all: &[Tensor]) -> Result<Vec<f64>> {
    all.iter().map(Tensor::item::<f64>).collect()
}

fn graph() -> BackwardOptions {
    BackwardOptions { create_graph: true, ..Default::default() }
}

fn retain() -> BackwardOptions {
    BackwardOptions { retain: true, ..Default::default() }
}

/// `y = a b` and `z = a + b^2`: `da = dy b + dz`, and `db = dy a + 2 dz b`, in which a is `y / b`: the rule reads an input and
/// an output.
fn two(a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    let (y, z) = (a.detach().mul(&b.detach())?, a.detach().add(&b.detach().square()?)?);
    let (sb, sy) = (Saved::input(b), Saved::nth_output(&y, 0));
    let mut outputs = record_outputs("two", &[a, b], vec![y, z], move |t| {
        let (b, y) = (t.get(&sb)?, t.get(&sy)?);
        let of_y = t.dy_of(0).map(|dy| Ok([dy.mul(&b)?, dy.mul(&y.div(&b)?)?])).transpose()?;
        let of_z = t.dy_of(1).map(|dz| Ok([dz.clone(), dz.mul(&b)?.mul_scalar(2.0)?])).transpose()?;
        match (of_y, of_z) {
            (Some(y), Some(z)) => Ok([y[0].add(&z[0])?, y[1].add(&z[1])?]),
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) => unreachable!("a rule runs if an output has a gradient"),
        }
    })?;
    let z = outputs.remove(1);
    Ok([outputs.remove(0), z])
}

fn outputs_of_one_node(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    // y = 15, z = 28; d(y z + z) = z dy + (y + 1) dz, with dy = (5, 3) and dz = (1, 10).
    y.mul(&z)?.add(&z)?.backward()?;
    let found = items(&[a.grad(), b.grad()].map(|g| g.expect("a leaf has its gradient")))?;
    Ok(equal("both outputs, one used twice", found, vec![28.0 * 5.0 + 16.0, 28.0 * 3.0 + 160.0]))
}

fn missing_gradients(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    let of_y = equal("the first alone", items(&grad_with(&y, &[&a, &b], &retain())?)?, vec![5.0, 3.0]);
    let of_z = equal("the second alone", items(&grad_with(&z, &[&a, &b], &retain())?)?, vec![1.0, 10.0]);
    Ok(of_y.and(of_z))
}

fn integer_outputs(device: &Device) -> Result<Outcome> {
    let x = Tensor::from_slice(&[1.0f32, 4.0, 2.0], 3, device)?.require_grad()?;
    let outputs = vec![x.detach().mul_scalar(2.0)?, x.detach().argsort(0, Order::Ascending)?];
    let outputs = record_outputs("double_and_order", &[&x], outputs, |t| Ok([t.dy_or_zeros(0)?.mul_scalar(2.0)?]))?;
    outputs[0].sum(..)?.backward()?;
    let found = x.grad().expect("a leaf has its gradient").to_vec::<f32>()?;
    let of_float = equal("the gradient", found, vec![2.0; 3]);
    Ok(of_float.and(equal("an order on the tape", outputs[1].requires_grad(), false)))
}

fn hooks_and_retain(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let hook = z.register_hook(move |dz| {
        counter.fetch_add(1, Ordering::Relaxed);
        dz.mul_scalar(10.0).map(Some)
    })?;
    let of_y = equal("without the hook's output", items(&grad_with(&y, &[&a, &b], &retain())?)?, vec![5.0, 3.0]);
    let sum = y.add(&z)?;
    let of_both = equal("with it", items(&grad_with(&sum, &[&a, &b, &z], &retain())?)?, vec![15.0, 103.0, 10.0]);
    hook.remove();
    let after = equal("after it", items(&grad(&sum, &[&a, &b])?)?, vec![6.0, 13.0]);
    let spent = match grad(&z, &[&a]) {
        Err(e) => equal("a spent node's op", e.message().contains("`two`"), true),
        Ok(_) => Err("a spent node was used".into()),
    };
    let calls = equal("calls of the hook", calls.load(Ordering::Relaxed), 1);
    Ok(of_y.and(of_both).and(after).and(spent).and(calls))
}

fn second_derivatives(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    // d(y z)/db = z a + y 2 b; its derivative by b is 2 b a + a 2 b + 2 y = 6 a b, by a is z + a + 2 b^2.
    let first = grad_with(&y.mul(&z)?, &[&b], &graph())?.remove(0);
    let first_is = equal("first", first.item::<f64>()?, 28.0 * 3.0 + 150.0);
    let second = items(&grad(&first, &[&a, &b])?)?;
    Ok(first_is.and(equal("second", second, vec![28.0 + 3.0 + 50.0, 90.0])))
}

fn checkpointed_outputs(device: &Device) -> Result<Outcome> {
    let run = |is_checkpointed: bool| {
        let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
        let block = |x: &[Tensor]| two(&x[0].exp()?, &x[1]).map(|[y, z]| (y, z));
        let (y, z) = if is_checkpointed { checkpoint(block, &[&a, &b])? } else { block(&[a.clone(), b.clone()])? };
        let both = items(&grad_with(&y.add(&z)?, &[&a, &b], &retain())?)?;
        Ok((both, items(&grad(&z, &[&a, &b])?)?))
    };
    let (checkpointed, plain) = (run(true)?, run(false)?);
    Ok(equal("gradients of both outputs, and of the second", checkpointed, plain))
}

/// Two outputs of x `[6, 40]` and w `[40]`.
type Function = fn(&[Tensor]) -> Result<(Tensor, Tensor)>;

const FUNCTIONS: &[(&str, Function)] = &[
    ("a chain", |t| Ok((t[0].sigmoid()?.mul(&t[0])?.add(&t[1])?.tanh()?, t[1].exp()?))),
    ("a norm", |t| {
        let centred = t[0].sub(&t[0].mean_keepdim(-1)?)?;
        let scale = centred.square()?.mean_keepdim(-1)?.add_scalar(1e-5)?.rsqrt()?;
        Ok((centred.mul(&scale)?.mul(&t[1])?, scale))
    }),
    ("a product", |t| Ok((t[0].mul(&t[1])?.matmul(&t[0].t()?)?.relu()?, t[0].cast(DType::F64)?))),
    ("an input and a part of it", |t| Ok((t[0].clone(), t[1].narrow(0, 3, 9)?.square()?))),
    ("an output without a gradient", |t| Ok((t[0].mul(&t[1])?, t[0].argmax(1)?))),
    ("one input alone", |t| Ok((t[1].neg()?, t[1].exp()?))),
];

/// A fused function has the bits of the plain one, and so have its gradients.
fn fused_functions(device: &Device) -> Result<Outcome> {
    for dtype in [DType::F32, DType::BF16] {
        for (name, f) in FUNCTIONS {
            let run = |is_fused: bool| -> Result<Vec<Vec<u8>>> {
                let x = Tensor::arange_with(0.0, 240.0, 1.0, DType::F32, device)?
                    .mul_scalar(0.7)?
                    .sin()?
                    .reshape((6, 40))?;
                let w = Tensor::arange_with(0.0, 40.0, 1.0, DType::F32, device)?.mul_scalar(0.3)?.cos()?;
                let [x, w] = [x, w].map(|t| t.cast(dtype)?.require_grad());
                // Inputs with gradients of their own, of which one comes from the other.
                let (x, w) = (x?, w?);
                let (u, v) = (x.mul_scalar(1.5)?, x.select(0, 2)?.add(&w)?);
                let (y, z) = if is_fused { fuse(f, &[&u, &v])? } else { f(&[u, v])? };
                let [sum, other] = [&y, &z].map(|t| t.cast(DType::F32)?.mul(&t.cast(DType::F32)?)?.sum(..));
                let gradients = grad(&sum?.add(&other?)?, &[&x, &w])?;
                [y, z].iter().chain(&gradients).map(Tensor::to_bytes).collect()
            };
            let plain = run(false)?;
            // The second time by the plan of the first, on other memory.
            let first = run(true)?;
            let between = Tensor::zeros(1000, dtype, device)?;
            if first != plain || run(true)? != plain {
                return Ok(Err(format!("{name}, {dtype}: other bits than without `fuse`")));
            }
            drop(between);
        }
    }
    Ok(Ok(()))
}

fn fused_second_derivatives(device: &Device) -> Result<Outcome> {
    let run = |is_fused: bool| {
        let (a, b) = (leaf(0.7, device)?, leaf(1.3, device)?);
        let f = |t: &[Tensor]| t[0].exp()?.mul(&t[1].square()?.mul(&t[1])?);
        let inputs = [a.mul(&a)?, a.add(&b)?];
        let y = if is_fused { fuse(f, &[&inputs[0], &inputs[1]])? } else { f(&inputs)? };
        let first = grad_with(&y, &[&a, &b], &graph())?;
        let second = grad(&first[0].mul(&first[1])?, &[&a, &b])?;
        items(&[first, second].concat())
    };
    Ok(equal("first and second derivatives", run(true)?, run(false)?))
}

fn fused_refused(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(0.7, device)?, leaf(1.3, device)?);
    let held = b.clone();
    let weight = fuse(move |t| t[0].mul(&held), &[&a]);
    let kept = leaf(2.0, device)?.detach();
    let y = fuse(|t| t[0].mul(&t[1]), &[&a, &kept])?;
    kept.add_(&kept.copy()?)?;
    Ok(refused("a weight that is held", weight, Kind::Value, "not among its inputs").and(refused(
        "an input that changed",
        grad(&y, &[&a]),
        Kind::Value,
        "changed in place",
    )))
}

fn anomaly_of_an_output(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(1e30, device)?);
    // a b is 3e30, and a + b^2 is infinite.
    Ok(match detect_anomaly(|| two(&a, &b)) {
        Err(e) if e.op() == "square" || e.op() == "two" => Ok(()),
        Err(e) => Err(format!("{e}")),
        Ok(_) => Err("an infinite output went by".into()),
    })
}

/// A mask of -infinity is a part of attention, and no anomaly; a result that is not finite is one.
fn masked_scores(device: &Device) -> Result<Outcome> {
    let x = Tensor::from_vec((0..48).map(|v| v as f32 / 8.0).collect(), (1, 2, 6, 4), device)?.require_grad()?;
    let causal = Attention { causal: Causal::TopLeft, ..Attention::default() };
    let attend = |v: &Tensor| detect_anomaly(|| x.scaled_dot_product_attention(&x, v, &causal)?.sum(..)?.backward());
    let finite = attend(&x).map_err(|e| e.to_string());
    Ok(finite.and(refused("an infinite value", attend(&x.mul_scalar(f64::INFINITY)?), Kind::Value, "the output is")))
}

fn printed_outputs(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    let sum = y.add(&z)?;
    let text = tape::text(&sum);
    let lines: Vec<&str> = text.lines().collect();
    let number = lines[2].split(' ').next().unwrap_or_default();
    let names = lines[3].contains(&format!("add({number}.0, {number}.1)"));
    let line = lines[2].ends_with(") f32 [1], f32 [1] saved");
    let arrows = tape::graphviz(&sum);
    let arrows = arrows.contains("[label=\"0\"];") && arrows.contains("[label=\"1\"];");
    if names && line && arrows { Ok(Ok(())) } else { Ok(Err(text)) }
}

fn diff_of_outputs(device: &Device) -> Result<Outcome> {
    let found = isograd_parity::diff(&Device::cpu()?, device, |device| {
        let [y, z] = two(&leaf(3.0, device)?.exp()?, &leaf(5.0, device)?)?;
        y.mul(&z)
    })?;
    let is_there = found.entries.iter().any(|entry| entry.op == "two");
    Ok(equal("a node", is_there, true).and(equal("the first difference", found.first().map(|e| e.op.clone()), None)))
}

fn several_results(device: &Device) -> Result<Outcome> {
    let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
    let [y, z] = two(&a, &b)?;
    let number = |v: f32| Tensor::from_slice(&[v], 1, device);
    let found = grad_from(&[(&y, number(2.0)?), (&z, number(7.0)?)], &[&a, &b], &BackwardOptions::default())?;
    Ok(equal("2 dy + 7 dz", items(&found)?, vec![17.0, 76.0]))
}

fn own_memory(device: &Device) -> Result<Outcome> {
    let given = Tensor::from_slice(&[1.0f32], 1, device)?;
    for create_graph in [false, true] {
        let (a, b) = (leaf(3.0, device)?, leaf(5.0, device)?);
        let options = BackwardOptions { gradient: Some(given.clone()), create_graph, ..Default::default() };
        let found = grad_with(&a.add(&b)?, &[&a, &b], &options)?;
        no_grad(|| found[0].mul_(&Tensor::full(1, 9.0, DType::F32, device)?))?;
        let values = vec![found[0].item::<f64>()?, found[1].item::<f64>()?, given.item::<f64>()?];
        if values != [9.0, 1.0, 1.0] {
            return Ok(Err(format!("after a change of the first: {values:?}, create_graph {create_graph}")));
        }
    }
    Ok(Ok(()))
}

fn spent_hooks(device: &Device) -> Result<Outcome> {
    let x = leaf(3.0, device)?;
    let held = Arc::new(());
    let y = x.square()?;
    let (own, token) = (y.clone(), held.clone());
    y.register_hook(move |_| {
        let _ = (&own, &token);
        Ok(None)
    })?;
    y.backward()?;
    drop(y);
    Ok(equal("holders of the hook's captures", Arc::strong_count(&held), 1))
}

/// Indices, masks and further outputs, changed between forward and backward.
fn stale(device: &Device) -> Result<Outcome> {
    let x = || Tensor::from_slice(&[1.0f32, 4.0, 2.0, 3.0], (2, 2), device)?.require_grad();
    let index = || Tensor::from_slice(&[0i64, 1], 2, device);
    type Make<'a> = Box<dyn Fn() -> Result<(Tensor, Tensor)> + 'a>;
    let cases: Vec<(&str, Make<'_>)> = vec![
        (
            "gather",
            Box::new(|| {
                let i = Tensor::from_slice(&[0i64, 1], (1, 2), device)?;
                Ok((x()?.gather(0, &i)?, i))
            }),
        ),
        (
            "scatter",
            Box::new(|| {
                let i = Tensor::from_slice(&[0i64, 1], (1, 2), device)?;
                Ok((x()?.scatter_add(0, &i, &x()?)?, i))
            }),
        ),
        (
            "index_select",
            Box::new(|| {
                let i = index()?;
                Ok((x()?.index_select(0, &i)?, i))
            }),
        ),
        (
            "embedding",
            Box::new(|| {
                let i = index()?;
                Ok((x()?.embedding(&i, &Default::default())?, i))
            }),
        ),
        (
            "embedding_rmsnorm",
            Box::new(|| {
                let i = index()?;
                Ok((x()?.embedding_rmsnorm(&i, None, 1e-6)?, i))
            }),
        ),
        (
            "scatter_sum",
            Box::new(|| {
                let i = index()?;
                Ok((x()?.scatter_sum(&i, Some(2))?, i))
            }),
        ),
        (
            "scatter_mean",
            Box::new(|| {
                let i = index()?;
                Ok((x()?.scatter_mean(&i, Some(2))?, i))
            }),
        ),
        ("the rows of scatter_max", Box::new(|| x()?.scatter_max(&index()?, Some(2), TieGrad::First))),
        (
            "where_cond",
            Box::new(|| {
                let mask = x()?.detach().gt_scalar(2.0)?;
                Ok((mask.where_cond(&x()?, &x()?)?, mask))
            }),
        ),
        (
            "where_scalar",
            Box::new(|| {
                let mask = x()?.detach().gt_scalar(2.0)?;
                Ok((mask.where_scalar(&x()?, 0.0)?, mask))
            }),
        ),
        (
            "the positions of max_pool2d",
            Box::new(|| x()?.reshape((1, 1, 2, 2))?.max_pool2d_with_indices(&MaxPool::new([2, 2]))),
        ),
    ];
    for (name, make) in cases {
        let (y, changed) = make()?;
        changed.fill_(0)?;
        match y.sum(..)?.backward() {
            Err(e) if e.kind() == Kind::Value && e.message().contains("changed in place") => {}
            Err(e) => return Ok(Err(format!("{name}: {e}"))),
            Ok(()) => return Ok(Err(format!("{name}: a gradient by what was changed since"))),
        }
    }
    Ok(Ok(()))
}

fn change_once(device: &Device) -> Result<Outcome> {
    let run = |is_checkpointed: bool| {
        let norm = Arc::new(BatchNorm1d::new(2, &Init::new(device))?);
        let x = Tensor::from_slice(&[0.0f32, 3.0, 2.0, 5.0], (2, 2), device)?.require_grad()?;
        let held = norm.clone();
        let block = move |x: &[Tensor]| held.forward(&x[0])?.square();
        let y = if is_checkpointed { checkpoint(block, &[&x])? } else { block(std::slice::from_ref(&x))? };
        y.mul(&Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2), device)?)?.sum(..)?.backward()?;
        let state = [&norm.running_mean, &norm.running_var, &norm.num_batches_tracked];
        let state = state.into_iter().flatten().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()?;
        Ok((state, x.grad().expect("a leaf has its gradient").to_f64_vec()?))
    };
    let (checkpointed, plain) = (run(true)?, run(false)?);
    let counted = equal("batches", checkpointed.0.last().cloned(), Some(vec![1.0]));
    Ok(counted.and(equal("statistics, batches and gradient", checkpointed, plain)))
}

fn held_weight(device: &Device) -> Result<Outcome> {
    let (x, w) = (leaf(2.0, device)?, Tensor::from_slice(&[3.0f32], 1, device)?);
    let held = w.clone();
    let y = checkpoint(move |x: &[Tensor]| x[0].mul(&held), &[&x])?;
    w.fill_(100.0)?;
    let refused = match y.backward() {
        Err(e) if e.op() == "checkpoint" && e.message().contains("changed in place") => Ok(()),
        Err(e) => Err(format!("{e}")),
        Ok(()) => Err(format!("a gradient by the new weight: {:?}", x.grad())),
    };
    // What a closure makes and changes itself is nobody else's.
    let own = checkpoint(
        move |x: &[Tensor]| {
            let factor = Tensor::full(1, 3.0, DType::F32, x[0].device())?;
            factor.fill_(4.0)?;
            x[0].mul(&factor)
        },
        &[&x],
    )?;
    own.backward()?;
    Ok(refused.and(equal("by its own factor", x.grad().map(|g| g.item::<f64>()).transpose()?, Some(4.0))))
}

fn two_losses(device: &Device) -> Result<Outcome> {
    let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2), device)?.require_grad()?;
    let x = Tensor::from_slice(&[1.0f32, 0.5], (1, 2), device)?;
    let loss = |factor: f64| x.mul_scalar(factor)?.linear(&w, None)?.sum(..);
    let (first, second) = autocast(DType::BF16, || Ok((loss(1.0)?, loss(2.0)?)))?;
    first.backward()?;
    second.backward()?;
    let found = w.grad().expect("a leaf has its gradient").to_f64_vec()?;
    Ok(equal("the sum of both gradients", found, vec![3.0, 1.5, 3.0, 1.5]))
}
