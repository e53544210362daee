//! Losses.

use super::common::{none, one};
use super::invocation::{self, Invocation};
use super::op::Class::Stages;
use super::op::Op;
use crate::bench::{self, Bench, Call, MANY, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::loss::{
    self, CrossEntropy, Ctc, Focal, FocalInput, GaussianNll, KlTarget, MultiMargin, PoissonNll, Rate, Terms, Triplet,
    TripletNegative,
};
use isograd_core::{DType, Result, Tensor};
use serde_json::{Value, json};

const REDUCTIONS: [&str; 3] = ["none", "mean", "sum"];

/// A loss of two operands of the same shape.
fn loss(
    name: &'static str,
    operands: [&'static str; 2],
    domains: [Domain; 2],
    attributes: Value,
    run: fn(&Invocation<'_>, &Tensor, &Tensor) -> Result<Tensor>,
) -> Op {
    let make = move |g: &mut Gen| {
        Case::new(attributes.clone(), vec![(operands[0], g.x(domains[0])), (operands[1], g.x(domains[1]))])
    };
    loss_of(name, operands, make, run)
}

/// A loss of two operands. A reduction is added to its cases.
fn loss_of(
    name: &'static str,
    operands: [&'static str; 2],
    make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static,
    run: fn(&Invocation<'_>, &Tensor, &Tensor) -> Result<Tensor>,
) -> Op {
    Op::new(
        name,
        move |c| one(run(c, c.input(operands[0])?, c.input(operands[1])?)),
        move |g| {
            let reduction = g.pick(&REDUCTIONS);
            let mut case = make(g);
            case.attributes["reduction"] = reduction.into();
            case
        },
    )
    .class(Stages)
    .fused()
}

fn options(c: &Invocation<'_>) -> Result<CrossEntropy> {
    Ok(CrossEntropy {
        weight: c.optional("weight").cloned(),
        ignore_index: c.optional_of("ignore_index", Invocation::int)?,
        label_smoothing: c.float_or("label_smoothing", 0.0)?,
        // `byte_mean` is the mean weighted by `token_bytes`.
        reduction: c
            .choice("reduction", &[&invocation::REDUCTIONS[..], &[("byte_mean", loss::Reduction::Mean)]].concat())?,
        token_bytes: c.optional("token_bytes").cloned(),
    })
}

/// Scores `[N, C, rest..]` in `domain` and targets: class indices, or probabilities.
fn classes(g: &mut Gen, name: &'static str, domain: Domain, probabilities: bool) -> Case {
    let timed = g.timed().map(usize::isqrt);
    let n = timed.unwrap_or_else(|| g.side());
    let c = if let Some(c) = timed {
        c
    } else if n < 4 {
        g.pick(&[1, 2, 3, 4, 35])
    } else {
        g.pick(&[4, 35, 1009])
    };
    let rest = if g.coin() || timed.is_some() { vec![] } else { vec![g.below(3)] };
    let target: Vec<usize> = [n].into_iter().chain(rest.clone()).collect();
    let scores: Vec<usize> = [n, c].into_iter().chain(rest).collect();
    let x = (name, g.tensor(domain, &scores));
    let mut attributes = json!({"reduction": g.pick(&REDUCTIONS)});
    if probabilities && g.below(4) == 0 {
        attributes["label_smoothing"] = 0.1.into();
        return Case::new(attributes, vec![x, ("target", g.tensor(Domain::Unit, &scores))]);
    }
    // A mean is NaN if all targets are ignored.
    if attributes["reduction"] != "mean" && g.coin() {
        attributes["ignore_index"] = 0.into();
    }
    let target = g.indices(c, &target);
    let target = if g.coin() { target.cast(DType::I32).expect("classes are small") } else { target };
    let mut inputs = vec![x, ("target", target)];
    // Weights and smoothing together run the code of each alone too, so most cases have both.
    let [is_weighted, is_smoothed] =
        g.pick(&[[true, true], [true, true], [true, false], [false, true], [false, false]]);
    if is_weighted {
        inputs.push(("weight", g.tensor(Domain::Positive, &[c])));
    }
    if probabilities && is_smoothed {
        attributes["label_smoothing"] = 0.1.into();
    }
    if g.below(4) == 0 {
        attributes["reduction"] = "byte_mean".into();
        inputs.push(("token_bytes", g.tensor(Domain::Positive, &[c])));
    }
    Case::new(attributes, inputs)
}

fn kl_target(c: &Invocation<'_>) -> Result<KlTarget> {
    Ok(if c.flag("log_target")? { KlTarget::Logarithms } else { KlTarget::Probabilities })
}

/// Two operands, the second a probability, and some of the weights. The weight of the positive term may also be a single number.
fn weighted(g: &mut Gen, operands: [&'static str; 2], domain: Domain, weights: &[&'static str]) -> Case {
    let mut inputs = vec![(operands[0], g.x(domain)), (operands[1], g.x(Domain::Unit))];
    for weight in weights {
        match g.below(4) {
            0 => inputs.push((weight, g.x(Domain::Positive))),
            1 if *weight == "pos_weight" => inputs.push((weight, g.tensor(Domain::Positive, &[]))),
            _ => {}
        }
    }
    Case::new(none(), inputs)
}

fn focal_case(g: &mut Gen) -> Case {
    let is_from_logits = g.coin();
    let x = g.x(if is_from_logits { Domain::Real } else { Domain::Unit });
    let alpha = g.pick(&[0.25, 0.25, -1.0]);
    let gamma = g.pick(&[2.0, 1.0, 1.5, 0.0]);
    let attributes = json!({"alpha": alpha, "gamma": gamma, "from_logits": is_from_logits});
    Case::new(attributes, vec![("x", x), ("t", g.x(Domain::Unit))])
}

/// 1 and -1.
fn signs(g: &mut Gen, shape: &[usize]) -> Tensor {
    let y = g.tensor(Domain::Unit, shape).round().and_then(|y| y.mul_scalar(2.0)?.sub_scalar(1.0));
    y.expect("floats round")
}

/// Scores `[N, C]` or `[C]`, and the shape of their rows. A grid of 0.097 has no differences near a margin of 1 or of 0.55.
fn scores(g: &mut Gen) -> (Tensor, Vec<usize>) {
    let classes = 1 + g.below(5);
    let rows = if g.coin() { vec![] } else { vec![g.side()] };
    let x = g.tensor(Domain::Grid(0.0), &[&rows[..], &[classes]].concat()).mul_scalar(0.97);
    (x.expect("floats"), rows)
}

fn terms(c: &Invocation<'_>) -> Result<Terms> {
    Ok(if c.flag("full")? { Terms::All } else { Terms::OfPrediction })
}

/// Rows `[N, D]`, or one.
fn cosine_case(g: &mut Gen) -> Case {
    let (d, rows) = (1 + g.side(), if g.coin() { vec![] } else { vec![g.side()] });
    let shape = [&rows[..], &[d]].concat();
    let (a, b) = (g.tensor(Domain::Real, &shape), g.tensor(Domain::Real, &shape));
    let y = signs(g, &rows);
    Case::new(json!({"margin": 0.1, "reduction": g.pick(&REDUCTIONS)}), vec![("x1", a), ("x2", b), ("y", y)])
}

fn multi_margin_case(g: &mut Gen) -> Case {
    let (x, rows) = scores(g);
    let classes = x.dims()[x.rank() - 1];
    let mut inputs = vec![("x", x), ("target", g.indices(classes, &rows))];
    if g.coin() {
        inputs.push(("weight", g.tensor(Domain::Positive, &[classes])));
    }
    Case::new(json!({"p": 1 + g.below(2), "margin": 0.55, "reduction": g.pick(&REDUCTIONS)}), inputs)
}

/// Frames with labels of a few sequences. Losses without an alignment are 0, because infinite ones have no differences.
fn ctc_case(g: &mut Gen) -> Case {
    let is_large = g.is_large();
    let (steps, batch, classes) = (1 + g.side(), 1 + g.below(3), 2 + g.below(4));
    let labels = if is_large { g.side() / 2 } else { g.below(4) };
    let blank = g.below(classes);
    let targets = g.indices(classes - 1, &[batch, labels]);
    // The classes without the blank.
    let is_above = targets.ge_scalar(blank as i64).and_then(|b| b.cast(DType::I64)).expect("integers are compared");
    let targets = targets.add(&is_above).expect("integers are added");
    let lengths = |g: &mut Gen, least: usize, most: usize| {
        g.indices(most - least + 1, &[batch]).add_scalar(least as i64).expect("integers are added")
    };
    let (frames, count) = (lengths(g, 1, steps), lengths(g, 0, labels));
    let attributes = json!({"blank": blank, "zero_infinity": true, "reduction": g.pick(&REDUCTIONS)});
    let x = g.tensor(Domain::Real, &[steps, batch, classes]);
    Case::new(attributes, vec![("x", x), ("targets", targets), ("input_lengths", frames), ("target_lengths", count)])
}

fn ctc() -> Op {
    let run = |c: &Invocation<'_>| {
        let options =
            Ctc { blank: c.size_or("blank", 0)?, reduction: c.reduction()?, zero_infinity: c.flag("zero_infinity")? };
        let (targets, frames, count) = (c.input("targets")?, c.input("input_lengths")?, c.input("target_lengths")?);
        one(c.input("x")?.ctc_loss(targets, frames, count, &options))
    };
    Op::new("ctc_loss", run, ctc_case).class(Stages).fused().also(&["gather"]).launches(60, 30)
}

/// Losses of margins and of likelihoods, which are composites.
fn composites() -> Vec<Op> {
    let composite = |name, run: fn(&Invocation<'_>) -> Result<Tensor>, make: fn(&mut Gen) -> Case| {
        Op::new(name, move |c| one(run(c)), make).class(Stages)
    };
    vec![
        ctc(),
        composite(
            "cosine_embedding_loss",
            |c| {
                let (x1, x2, y) = (c.input("x1")?, c.input("x2")?, c.input("y")?);
                x1.cosine_embedding_loss(x2, y, c.float("margin")?, c.reduction()?)
            },
            cosine_case,
        )
        .constant(&["y"])
        .launches(20, 30),
        composite(
            "margin_ranking_loss",
            |c| {
                let (x1, x2, y) = (c.input("x1")?, c.input("x2")?, c.input("y")?);
                x1.margin_ranking_loss(x2, y, c.float("margin")?, c.reduction()?)
            },
            |g| {
                let shape = g.shape.clone();
                let (x1, x2, y) = (g.x(Domain::Grid(0.0)), g.x(Domain::Grid(0.03)), signs(g, &shape));
                let attributes = json!({"margin": 0.5, "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![("x1", x1), ("x2", x2), ("y", y)])
            },
        )
        .launches(8, 12),
        composite(
            "hinge_embedding_loss",
            |c| c.input("x")?.hinge_embedding_loss(c.input("y")?, c.float("margin")?, c.reduction()?),
            |g| {
                let (shape, x) = (g.shape.clone(), g.x(Domain::Grid(0.03)));
                let attributes = json!({"margin": 1.0, "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![("x", x), ("y", signs(g, &shape))])
            },
        )
        .constant(&["y"])
        .launches(10, 10),
        composite(
            "soft_margin_loss",
            |c| c.input("x")?.soft_margin_loss(c.input("y")?, c.reduction()?),
            |g| {
                let (shape, x) = (g.shape.clone(), g.x(Domain::Real));
                Case::new(json!({"reduction": g.pick(&REDUCTIONS)}), vec![("x", x), ("y", signs(g, &shape))])
            },
        )
        .launches(6, 8),
        composite(
            "multi_margin_loss",
            |c| {
                let p = c.size_or("p", 1)?.try_into().unwrap_or(u32::MAX);
                let options = MultiMargin { p, margin: c.float("margin")?, reduction: c.reduction()? };
                c.input("x")?.multi_margin_loss(c.input("target")?, c.optional("weight"), &options)
            },
            multi_margin_case,
        )
        .constant(&["weight"])
        .launches(16, 16),
        composite(
            "multilabel_margin_loss",
            |c| c.input("x")?.multilabel_margin_loss(c.input("target")?, c.reduction()?),
            |g| {
                let (x, _) = scores(g);
                let target = g.indices(x.dims()[x.rank() - 1] + 1, x.dims()).sub_scalar(1).expect("integers");
                Case::new(json!({"reduction": g.pick(&REDUCTIONS)}), vec![("x", x), ("target", target)])
            },
        )
        .launches(24, 16),
        composite(
            "multilabel_soft_margin_loss",
            |c| c.input("x")?.multilabel_soft_margin_loss(c.input("y")?, c.optional("weight"), c.reduction()?),
            |g| {
                let (x, _) = scores(g);
                let shape = x.dims().to_vec();
                let mut inputs = vec![("x", x), ("y", g.tensor(Domain::Unit, &shape))];
                if g.coin() {
                    inputs.push(("weight", g.tensor(Domain::Positive, &shape[shape.len() - 1..])));
                }
                Case::new(json!({"reduction": g.pick(&REDUCTIONS)}), inputs)
            },
        )
        .constant(&["weight"])
        .launches(14, 20),
        composite(
            "poisson_nll_loss",
            |c| {
                let input = if c.flag_or("log_input", true)? { Rate::Logarithm } else { Rate::Plain };
                let (terms, eps, reduction) = (terms(c)?, c.float_or("eps", 1e-8)?, c.reduction()?);
                c.input("x")?.poisson_nll_loss(c.input("target")?, &PoissonNll { input, terms, eps, reduction })
            },
            |g| {
                let is_log = g.coin();
                let x = g.x(if is_log { Domain::Real } else { Domain::Unit });
                let target = g.x(Domain::Away(&[-1.0, 0.0, 1.0])).abs().expect("floats");
                let attributes =
                    json!({"log_input": is_log, "full": g.coin(), "eps": 1e-8, "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![("x", x), ("target", target)])
            },
        )
        .launches(20, 30),
        composite(
            "gaussian_nll_loss",
            |c| {
                let options =
                    GaussianNll { terms: terms(c)?, eps: c.float_or("eps", 1e-6)?, reduction: c.reduction()? };
                c.input("x")?.gaussian_nll_loss(c.input("target")?, c.input("var")?, &options)
            },
            |g| {
                let (x, t) = (g.x(Domain::Real), g.x(Domain::Real));
                let mut shape = g.shape.clone();
                match (g.below(3), shape.len()) {
                    (0, 1..) => shape.truncate(shape.len() - 1),
                    (1, rank @ 1..) => shape[rank - 1] = 1,
                    _ => {}
                }
                let var = g.tensor(Domain::Positive, &shape);
                let attributes = json!({"full": g.coin(), "eps": 1e-6, "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![("x", x), ("target", t), ("var", var)])
            },
        )
        .fused()
        .launches(16, 30),
    ]
}

pub(super) fn ops() -> Vec<Op> {
    kernels().into_iter().chain(composites()).collect()
}

/// Losses that are rows of the pointwise table, or have kernels.
fn kernels() -> Vec<Op> {
    let apart = [Domain::Grid(0.0), Domain::Grid(0.03)];
    let beside = |g: &mut Gen, name, phase| {
        let shape = match g.timed() {
            Some(_) => g.shape.clone(),
            None if g.is_large() => vec![67, 131],
            None => vec![3, 2],
        };
        (name, g.tensor(Domain::Grid(phase), &shape))
    };
    let (unit, real) = (Domain::Unit, Domain::Real);
    vec![
        loss("mse_loss", ["a", "t"], apart, none(), |c, a, t| a.mse_loss(t, c.reduction()?)).launches(2, 1).bench([
            Bench::new(&[MANY], call(bench::two, |_, x| x[0].mse_loss(&x[1], Default::default())), |c| c.whole(2))
                .dtypes(STORED),
        ]),
        loss("l1_loss", ["a", "t"], apart, none(), |c, a, t| a.l1_loss(t, c.reduction()?)).launches(2, 1),
        loss("smooth_l1_loss", ["a", "t"], apart, json!({"beta": 0.75}), |c, a, t| {
            a.smooth_l1_loss(t, c.float("beta")?, c.reduction()?)
        })
        .launches(2, 1),
        loss("huber_loss", ["a", "t"], apart, json!({"delta": 0.75}), |c, a, t| {
            a.huber_loss(t, c.float("delta")?, c.reduction()?)
        })
        .also(&["smooth_l1_loss"])
        .launches(2, 2),
        loss_of(
            "bce_loss",
            ["p", "t"],
            move |g| weighted(g, ["p", "t"], unit, &["weight"]),
            |c, p, t| p.bce_loss(t, c.optional("weight"), c.reduction()?),
        )
        .constant(&["weight"])
        .launches(3, 3),
        loss_of(
            "bce_with_logits",
            ["x", "t"],
            move |g| weighted(g, ["x", "t"], real, &["weight", "pos_weight"]),
            |c, x, t| x.bce_with_logits(t, c.optional("weight"), c.optional("pos_weight"), c.reduction()?),
        )
        .constant(&["weight", "pos_weight"])
        .launches(4, 4),
        loss_of(
            "kl_div",
            ["input", "target"],
            move |g| {
                let is_log = g.coin();
                let target = g.x(if is_log { real } else { unit });
                Case::new(json!({"log_target": is_log}), vec![("input", g.x(real)), ("target", target)])
            },
            |c, x, t| x.kl_div(t, kl_target(c)?, c.reduction()?),
        )
        .also(&["kl_div_log"])
        .launches(2, 2),
        loss_of("focal_loss", ["x", "t"], focal_case, |c, x, t| {
            let input = if c.flag_or("from_logits", true)? { FocalInput::Logits } else { FocalInput::Probabilities };
            let (alpha, gamma, reduction) = (c.float("alpha")?, c.float("gamma")?, c.reduction()?);
            x.focal_loss(t, &Focal { alpha, gamma, input, reduction })
        })
        .constant(&["t"])
        .launches(2, 1),
        Op::new(
            "cross_entropy",
            |c| one(c.input("logits")?.cross_entropy_with(c.input("target")?, &options(c)?)),
            |g| classes(g, "logits", Domain::Real, true),
        )
        .class(Stages)
        .fused()
        .kernels(&["cross_entropy_loss"])
        .constant(&["weight", "token_bytes"])
        .launches(12, 6)
        .bench([tokens()]),
        Op::new(
            "nll_loss",
            |c| one(c.input("logp")?.nll_loss(c.input("target")?, &options(c)?)),
            |g| classes(g, "logp", Domain::Real, false),
        )
        .class(Stages)
        .fused()
        .constant(&["weight", "token_bytes"])
        // The composite, which runs for empty inputs.
        .launches(8, 2),
        Op::new(
            "triplet_loss",
            |c| {
                let nearest = c.flag("swap")?;
                let negative = if nearest { TripletNegative::Nearest } else { TripletNegative::FromAnchor };
                let (margin, p, eps) = (c.float("margin")?, c.float("p")?, c.float("eps")?);
                let options = Triplet { margin, p, eps, negative, reduction: c.reduction()? };
                one(c.input("a")?.triplet_loss(c.input("p")?, c.input("n")?, &options))
            },
            move |g| {
                let p = g.pick(&[1.0, 2.0, 3.0]);
                let attributes = json!({"margin": 1.0, "p": p, "eps": 1e-6, "swap": g.coin(),
                    "reduction": g.pick(&REDUCTIONS)});
                Case::new(attributes, vec![beside(g, "a", 0.0), beside(g, "p", 0.03), beside(g, "n", 0.06)])
            },
        )
        .class(Stages)
        .fused()
        .launches(2, 1),
        Op::new(
            "contrastive_loss",
            |c| {
                let (x1, x2, y) = (c.input("x1")?, c.input("x2")?, c.input("y")?);
                one(x1.contrastive_loss(x2, y, c.float("margin")?, c.reduction()?))
            },
            move |g| {
                let attributes = json!({"margin": 1.0, "reduction": g.pick(&REDUCTIONS)});
                let (x1, x2) = (beside(g, "x1", 0.0), beside(g, "x2", 0.03));
                let y = g.tensor(Domain::Unit, &x1.1.dims()[..1]).round().expect("floats round");
                Case::new(attributes, vec![x1, x2, ("y", y)])
            },
        )
        .class(Stages)
        .fused()
        .constant(&["y"])
        .launches(2, 1),
    ]
}

fn tokens() -> Bench {
    let inputs = |c: &Call| Ok(vec![c.normal(&c.dims)?, c.indices(c.dims[1], &c.dims[..1])?]);
    let action = call(inputs, |_, x| x[0].cross_entropy(&x[1]));
    Bench::new(&[8192, 50257], action, |c| c.whole(1)).dtypes(STORED).backward(|c| c.whole(2))
}
