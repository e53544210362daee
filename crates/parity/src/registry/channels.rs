//! Normalisation of channels.

use super::rows::one;
use super::{Class, Derivative, Invocation, Op, Slice};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Running, Statistics};
use isograd_core::{Error, Result, Tensor};
use serde_json::json;

const STATISTICS: &[&str] = &["running_mean", "running_var"];

pub(super) fn norms() -> Vec<Op> {
    vec![
        Op::new("batch_norm", |c| one(Kept::of(c)?.batch_norm(c)), |g| case(g, Kind::Batch))
            .class(Class::Stages)
            .constant(STATISTICS)
            .kernels(&["batchnorm_forward"])
            .fused(),
        Op::new("group_norm", group_norm, |g| case(g, Kind::Group))
            .class(Class::Stages)
            .slice(Slice::From(1))
            .kernels(&["groupnorm_forward"])
            .fused(),
        Op::new("instance_norm", |c| one(Kept::of(c)?.instance_norm(c)), |g| case(g, Kind::Instance))
            .class(Class::Stages)
            .constant(STATISTICS)
            .slice(Slice::From(2))
            .kernels(&["instancenorm_forward"])
            .fused(),
        // The running statistics that the two leave, and the number of batches.
        Op::new("batch_norm_running", |c| Kept::of(c)?.after(c, Kept::batch_norm), |g| running_case(g, Kind::Batch))
            .class(Class::Stages)
            .derivative(Derivative::None(UPDATED))
            .also(&["batch_norm"])
            .fused(),
        Op::new(
            "instance_norm_running",
            |c| Kept::of(c)?.after(c, Kept::instance_norm),
            |g| running_case(g, Kind::Instance),
        )
        .class(Class::Stages)
        .derivative(Derivative::None(UPDATED))
        .also(&["instance_norm"])
        .fused(),
    ]
}

const UPDATED: &str = "in place, outside of the tape";

/// Running statistics: of a case that updates them, copies.
struct Kept {
    mean_and_var: Option<(Tensor, Tensor)>,
    batches: Option<Tensor>,
    momentum: Option<f64>,
    /// Whether x is normalised with its own statistics.
    is_own: bool,
}

impl Kept {
    fn of(c: &Invocation<'_>) -> Result<Kept> {
        let name = if c.op.name.starts_with("instance") { "use_input_stats" } else { "training" };
        let is_own = !c.has(name) || c.flag(name)?;
        let kept = |t: &Tensor| if is_own && !c.is_in_place { t.detach().copy() } else { Ok(t.clone()) };
        let find = |name| c.optional(name).map(kept).transpose();
        let mean_and_var = find("running_mean")?.zip(find("running_var")?);
        let momentum = c.has("momentum").then(|| c.float("momentum")).transpose()?;
        Ok(Kept { mean_and_var, batches: find("num_batches")?, momentum, is_own })
    }

    fn statistics(&self, c: &Invocation<'_>) -> Result<Statistics<'_>> {
        let running = self.mean_and_var.as_ref().map(|(mean, var)| Running {
            mean,
            var,
            batches: self.batches.as_ref(),
            momentum: self.momentum,
        });
        match (running, self.is_own) {
            (None, true) => Ok(Statistics::Batch),
            (None, false) => Err(Error::value(c.op.name, "there are no running statistics")),
            (Some(running), true) => Ok(Statistics::Update(running)),
            (Some(running), false) => Ok(Statistics::Running(running)),
        }
    }

    fn batch_norm(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias) = (c.optional("weight"), c.optional("bias"));
        c.input("x")?.batch_norm(weight, bias, self.statistics(c)?, c.float("eps")?)
    }

    fn instance_norm(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias) = (c.optional("weight"), c.optional("bias"));
        c.input("x")?.instance_norm(weight, bias, self.statistics(c)?, c.float("eps")?)
    }

    /// What is kept after a call.
    fn after(self, c: &Invocation<'_>, call: fn(&Kept, &Invocation<'_>) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        call(&self, c)?;
        let (mean, var) = self.mean_and_var.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        Ok(mean.into_iter().chain(var).chain(self.batches).collect())
    }
}

fn group_norm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (x, groups) = (c.input("x")?, c.size("num_groups")?);
    one(x.group_norm(groups, c.optional("weight"), c.optional("bias"), c.float("eps")?))
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Batch,
    Group,
    Instance,
}

/// x `[N, C, ..]`.
fn shape(g: &mut Gen, kind: Kind) -> Vec<usize> {
    let mut shape = match g.side() {
        _ if g.timed().is_some() => vec![g.shape.iter().product::<usize>() >> 18, 64, 64, 64],
        side @ 4.. => match g.below(6) {
            0 => vec![side, 40],
            1 => vec![2, 4, 33, 31],
            2 => vec![1, 6, side, 32],
            3 => vec![3, 2, 4097],
            4 => vec![side, 3, 7],
            _ => vec![2, 70, 8],
        },
        n => {
            let channels = [1, 2, 4, 6][g.below(4)];
            let rest = [vec![], vec![5], vec![2, 3], vec![1], vec![4, 2, 2]][g.below(5)].clone();
            [vec![[3, 1, 2, 5][n], channels], rest].concat()
        }
    };
    // The variance of one value is refused.
    let inner: usize = shape[2..].iter().product();
    if kind == Kind::Instance && inner == 1 {
        shape = vec![shape[0], shape[1], 3];
    } else if shape[0] * inner == 1 {
        shape[0] = 2;
    }
    shape
}

fn case(g: &mut Gen, kind: Kind) -> Case {
    let shape = shape(g, kind);
    let channels = [shape[1]];
    let mut inputs = vec![("x", g.tensor(Domain::Real, &shape))];
    if g.coin() {
        inputs.push(("weight", g.tensor(Domain::Positive, &channels)));
    }
    if g.coin() {
        inputs.push(("bias", g.tensor(Domain::Real, &channels)));
    }
    if kind == Kind::Group {
        let groups: Vec<usize> = (1..=shape[1]).filter(|&groups| shape[1].is_multiple_of(groups)).collect();
        return Case::new(json!({"num_groups": g.pick(&groups), "eps": 0.5}), inputs);
    }
    let is_own = g.below(3) > 0;
    if !is_own || g.coin() {
        inputs.push(("running_mean", g.tensor(Domain::Real, &channels)));
        inputs.push(("running_var", g.tensor(Domain::Positive, &channels)));
    }
    let name = if kind == Kind::Batch { "training" } else { "use_input_stats" };
    Case::new(json!({name: is_own, "momentum": 0.1, "eps": 0.5}), inputs)
}

/// A case that updates running statistics, with a momentum or as an average of some batches.
fn running_case(g: &mut Gen, kind: Kind) -> Case {
    let shape = shape(g, kind);
    let channels = [shape[1]];
    let mut inputs = vec![
        ("x", g.tensor(Domain::Real, &shape)),
        ("running_mean", g.tensor(Domain::Real, &channels)),
        ("running_var", g.tensor(Domain::Positive, &channels)),
    ];
    let momentum = g.coin().then(|| g.pick(&[0.1, 0.5, 1.0]));
    if momentum.is_none() || g.coin() {
        let batches = g.indices(5, &[1]).reshape(()).expect("one element");
        inputs.push(("num_batches", batches));
    }
    Case::new(json!({"momentum": momentum, "eps": 0.5}), inputs)
}
