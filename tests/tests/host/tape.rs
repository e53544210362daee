//! The tape: accumulation, versions, depth, hooks, checkpoints, printing.

use isograd::tape::{self, BackwardOptions, checkpoint, detect_anomaly, grad, grad_with, gradcheck, record};
use isograd::{DType, Error, Kind, Result, Rng, Tensor, no_grad};
use isograd_tests::{cpu, leaf};

fn chain(n: usize) -> Result<(Tensor, Tensor)> {
    let x = leaf(&[1.0], 1)?;
    let mut y = x.clone();
    for _ in 0..n {
        y = y.add_scalar(1e-9)?;
    }
    Ok((x, y))
}

#[test]
fn a_million_nodes_go_backward_and_drop() -> Result<()> {
    let (x, y) = chain(1_000_000)?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f64>()?, 1.0);
    Ok(())
}

#[test]
fn a_million_nodes_drop_unused_on_a_small_stack() {
    let run = || chain(1_000_000).map(drop).unwrap();
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

/// Chains that hang on saved tensors as well as on inputs.
#[test]
fn a_long_chain_of_products_drops() -> Result<()> {
    let x = leaf(&[1.0], 1)?;
    let mut y = x.clone();
    for _ in 0..200_000 {
        y = y.mul(&x)?;
    }
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f64>()?, 200_001.0);
    Ok(())
}

#[test]
fn a_tensor_used_twice_adds_its_gradients() -> Result<()> {
    for order in 0..2 {
        let x = leaf(&[3.0], 1)?;
        let (a, b) = (x.mul_scalar(2.0)?, x.mul(&x)?);
        let y = if order == 0 { a.add(&b)? } else { b.add(&a)? };
        y.backward()?;
        assert_eq!(x.grad().unwrap().item::<f64>()?, 8.0);
    }
    Ok(())
}

/// Slices of one tensor, of which some overlap, beside a use of the whole: their gradients are added to slices of its gradient.
#[test]
fn slices_add_their_gradients() -> Result<()> {
    let values: Vec<f64> = (0..24).map(|v| f64::from(v) / 7.0 - 1.5).collect();
    let x = Tensor::from_vec(values, (2, 3, 4), &cpu())?.require_grad()?;
    let of = |x: &Tensor| -> Result<Tensor> {
        let (a, b) = (x.select(1, 0)?, x.select(1, 2)?);
        let (c, d) = (x.slice(2, 0, 4, 2)?, x.narrow(2, 1, 3)?);
        let parts = [a.mul(&b)?.sum(..)?, c.square()?.sum(..)?, d.sin()?.sum(..)?, x.exp()?.sum(..)?, b.sum(..)?];
        parts[1..].iter().try_fold(parts[0].clone(), |sum, part| sum.add(part))
    };
    gradcheck(|x| of(&x[0]), &[&x], &tape::GradcheckOptions::default())?;
    let plain = grad(&of(&x)?, &[&x])?.remove(0);
    // With the tape of the gradient itself, slices are embedded in zeros.
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    let taped = grad_with(&of(&x)?, &[&x], &options)?.remove(0);
    let apart = plain.sub(&taped)?.abs()?.amax(..)?.to_vec::<f64>()?[0];
    assert!(apart < 1e-14, "{apart}");
    let second = grad(&taped.sum(..)?, &[&x])?.remove(0);
    assert!(second.sub(&x.exp()?)?.abs()?.amax(..)?.to_vec::<f64>()?[0] > 0.1);
    Ok(())
}

#[test]
fn gradients_add_up_over_two_passes() -> Result<()> {
    let x = leaf(&[1.0, 2.0], 2)?;
    for _ in 0..2 {
        x.square()?.sum(..)?.backward()?;
    }
    assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [4.0, 8.0]);
    x.set_grad(None)?;
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn leaves_that_share_a_gradient_own_their_copies() -> Result<()> {
    let (a, b) = (leaf(&[1.0], 1)?, leaf(&[1.0], 1)?);
    a.add(&b)?.backward()?;
    a.grad().unwrap().fill_(5.0)?;
    assert_eq!(b.grad().unwrap().item::<f64>()?, 1.0);
    Ok(())
}

#[test]
fn a_saved_tensor_that_changed_is_an_error_that_names_the_op() -> Result<()> {
    let (x, w) = (leaf(&[1.0, 2.0], 2)?, Tensor::from_vec(vec![3.0, 4.0], 2, &cpu())?);
    let y = x.mul(&w)?.sum(..)?;
    w.fill_(0.0)?;
    let error = y.backward().unwrap_err();
    assert_eq!(error.kind(), Kind::Value);
    assert_eq!(error.op(), "mul");
    assert!(error.message().contains("changed in place"), "{error}");
    Ok(())
}

#[test]
fn a_leaf_changes_in_place_only_outside_of_the_tape() -> Result<()> {
    let x = leaf(&[1.0], 1)?;
    assert_eq!(x.fill_(2.0).unwrap_err().kind(), Kind::Value);
    no_grad(|| x.fill_(2.0))?;
    assert_eq!(x.item::<f64>()?, 2.0);
    Ok(())
}

#[test]
fn a_spent_tape_says_so_and_a_retained_one_goes_on() -> Result<()> {
    let x = leaf(&[2.0], 1)?;
    let y = x.square()?;
    y.backward_with(&BackwardOptions { retain: true, ..Default::default() })?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f64>()?, 8.0);
    let error = y.backward().unwrap_err();
    assert!(error.message().contains("spent") && error.message().contains("square"), "{error}");
    Ok(())
}

#[test]
fn no_grad_and_detach_leave_the_tape() -> Result<()> {
    let x = leaf(&[2.0], 1)?;
    assert!(!no_grad(|| x.square())?.requires_grad());
    assert!(!x.detach().square()?.requires_grad());
    assert!(x.square()?.requires_grad());
    assert_eq!(x.detach().square()?.backward().unwrap_err().kind(), Kind::Value);
    Ok(())
}

#[test]
fn hooks_see_replace_and_leave() -> Result<()> {
    let x = leaf(&[2.0], 1)?;
    let y = x.square()?;
    let hook = y.register_hook(|g| g.mul_scalar(10.0).map(Some))?;
    y.mul_scalar(1.0)?.backward_with(&BackwardOptions { retain: true, ..Default::default() })?;
    assert_eq!(x.grad().unwrap().item::<f64>()?, 40.0);
    hook.remove();
    x.set_grad(None)?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f64>()?, 4.0);
    Ok(())
}

#[test]
fn the_functional_form_leaves_leaves_alone() -> Result<()> {
    let (x, w) = (leaf(&[2.0], 1)?, leaf(&[5.0], 1)?);
    let y = x.square()?.mul(&w)?;
    let g = grad(&y, &[&x, &w])?;
    assert_eq!((g[0].item::<f64>()?, g[1].item::<f64>()?), (20.0, 4.0));
    assert!(x.grad().is_none() && w.grad().is_none());
    let unrelated = leaf(&[1.0], 1)?;
    assert_eq!(grad(&x.square()?, &[&unrelated]).unwrap_err().kind(), Kind::Value);
    Ok(())
}

#[test]
fn third_derivatives() -> Result<()> {
    let x = leaf(&[0.7], 1)?;
    let graph = || BackwardOptions { create_graph: true, ..Default::default() };
    let first = grad_with(&x.sin()?, &[&x], &graph())?.remove(0);
    let second = grad_with(&first, &[&x], &graph())?.remove(0);
    let third = grad_with(&second, &[&x], &graph())?.remove(0);
    assert!((third.item::<f64>()? + 0.7f64.cos()).abs() < 1e-14);
    // An op whose rule reads its own output.
    let first = grad_with(&x.sigmoid()?, &[&x], &graph())?.remove(0);
    let second = grad(&first, &[&x])?.remove(0).item::<f64>()?;
    let s = 1.0 / (1.0 + (-0.7f64).exp());
    assert!((second - s * (1.0 - s) * (1.0 - 2.0 * s)).abs() < 1e-14);
    Ok(())
}

#[test]
fn a_checkpoint_gives_the_same_bits() -> Result<()> {
    let device = cpu();
    let run = |checkpointed: bool| -> Result<(Vec<f32>, Vec<f32>, u64)> {
        let rng = Rng::new(7);
        let x = Tensor::randn((8, 16), 0.0, 1.0, DType::F32, &device, &rng)?.require_grad()?;
        let w = Tensor::randn((16, 16), 0.0, 1.0, DType::F32, &device, &rng)?.require_grad()?;
        let (captured, draws) = (w.clone(), rng.clone());
        let block = move |x: &[Tensor]| x[0].linear(&captured, None)?.dropout(0.5, &draws)?.tanh();
        let y = if checkpointed { checkpoint(block, &[&x])? } else { block(std::slice::from_ref(&x))? };
        y.dropout(0.5, &rng)?.sum(..)?.backward()?;
        Ok((x.grad().unwrap().to_vec()?, w.grad().unwrap().to_vec()?, rng.state().offset))
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}

#[test]
fn anomaly_detection_names_the_first_op() -> Result<()> {
    let x = leaf(&[-1.0, 1.0], 2)?;
    let error = detect_anomaly(|| x.log()?.sum(..)).unwrap_err();
    assert_eq!(error.op(), "log");
    let zero = leaf(&[0.0], 1)?;
    let error = detect_anomaly(|| zero.sqrt()?.mul_scalar(2.0)?.backward()).unwrap_err();
    assert_eq!(error.op(), "sqrt");
    assert!(error.message().contains("gradient"), "{error}");
    Ok(())
}

#[test]
fn the_tape_prints() -> Result<()> {
    let x = leaf(&[1.0, 2.0], 2)?;
    let y = x.exp()?.mul(&x)?.sum(..)?;
    let text = tape::text(&y);
    let ops: Vec<&str> = text.lines().map(|l| l.split_once(' ').unwrap().1.split('(').next().unwrap()).collect();
    assert_eq!(ops, ["leaf", "exp", "mul", "sum"], "{text}");
    let dot = tape::graphviz(&y);
    assert!(dot.starts_with("digraph tape {") && dot.ends_with("}\n"));
    assert_eq!(dot.matches("->").count(), 4, "{dot}");
    Ok(())
}

fn train(seed: u64) -> Result<Vec<f32>> {
    let (device, rng) = (cpu(), Rng::new(seed));
    let x = Tensor::randn((64, 8), 0.0, 1.0, DType::F32, &device, &rng)?;
    let w = Tensor::randn((1, 8), 0.0, 1.0, DType::F32, &device, &rng)?.require_grad()?;
    for _ in 0..50 {
        let loss = x.linear(&w, None)?.dropout(0.1, &rng)?.square()?.mean(..)?;
        loss.backward()?;
        no_grad(|| w.add_(&w.grad().unwrap().mul_scalar(-0.1)?))?;
        w.set_grad(None)?;
    }
    w.to_vec()
}

#[test]
fn two_threads_train_two_models() -> Result<()> {
    let alone = [train(1)?, train(2)?];
    let threads = [1, 2].map(|seed| std::thread::spawn(move || train(seed)));
    let together = threads.map(|t| t.join().unwrap().unwrap());
    assert_eq!(alone, together);
    Ok(())
}

fn cube(x: &Tensor, factor: f64) -> Result<Tensor> {
    let saved = tape::Saved::input(x);
    let y = no_grad(|| x.square()?.mul(x))?;
    record("cube", &[x], y, move |b| Ok([Some(b.dy().mul(&b.get(&saved)?.square()?)?.mul_scalar(factor)?)]))
}

#[test]
fn gradcheck_accepts_a_right_rule_and_finds_a_wrong_one() -> Result<()> {
    let x = Tensor::from_vec(vec![0.5, -1.5, 2.0], 3, &cpu())?;
    gradcheck(|x| cube(&x[0], 3.0), &[&x], &Default::default())?;
    let error = gradcheck(|x| cube(&x[0], 3.01), &[&x], &Default::default()).unwrap_err();
    assert!(error.message().contains("input 0, element 0"), "{error}");
    Ok(())
}

#[test]
fn a_rule_that_forgets_a_gradient_is_an_error() -> Result<()> {
    let x = leaf(&[1.0], 1)?;
    let y = record("forgetful", &[&x], x.detach().copy()?, |_| Ok([None::<Tensor>]))?;
    let error: Error = y.backward().unwrap_err();
    assert_eq!(error.op(), "forgetful");
    Ok(())
}

#[test]
fn a_trace_has_ops_with_attributes_and_ends_with_its_function() -> Result<()> {
    let device = cpu();
    let x = Tensor::from_vec(vec![1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0], (2, 3), &device)?;
    let (y, steps) = tape::trace(|| x.transpose(0, 1)?.leaky_relu(0.5)?.sum(0));
    let y = y?;
    x.exp()?;
    let ops: Vec<&tape::Op> =
        steps.iter().filter_map(|step| if let tape::Step::Op(op) = step { Some(op) } else { None }).collect();
    let names: Vec<&str> = ops.iter().map(|op| op.name).collect();
    assert_eq!(names, ["transpose", "leaky_relu", "sum"]);
    assert_eq!(ops[0].attributes, [("axes", tape::Attribute::Ints(vec![0, 1]))]);
    assert!(ops[1].attributes.contains(&("floats", tape::Attribute::Floats(vec![0.5]))));
    assert_eq!(ops[1].inputs[0].key(), ops[0].outputs[0].key());
    assert_eq!(ops[2].attributes, [("axes", tape::Attribute::Ints(vec![0]))]);
    assert_eq!(ops[2].outputs[0].key(), y.key());
    let kernels = steps.iter().filter(|step| matches!(step, tape::Step::Kernel(_))).count();
    assert_eq!(kernels, 2);
    Ok(())
}

#[test]
fn a_trace_within_another_has_steps_of_its_own() -> Result<()> {
    let x = Tensor::from_vec(vec![1.0f32, 2.0], 2, &cpu())?;
    let (inner, outer) = tape::trace(|| -> Result<usize> {
        x.exp()?;
        let (_, inner) = tape::trace(|| x.sin());
        x.exp()?;
        Ok(inner.len())
    });
    assert_eq!((inner?, outer.len()), (2, 4));
    Ok(())
}
