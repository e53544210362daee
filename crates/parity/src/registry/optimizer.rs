//! Steps of optimizers, clipping and loss scaling.

use super::common::{IN_PLACE, none, sum_of_two};
use super::invocation::{Attributes, Invocation};
use super::op::Class::{Arithmetic, Optimizer, Reduction, Stages};
use super::op::{Changes, Op};
use crate::bench::{Action, Bench, Call, Cost, STORED, Work};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{unscale_, update_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Result, Tensor, no_grad};
use isograd_nn::optim::Scaling;
use isograd_nn::{
    self as nn, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Adjust, Asgd, GradScaler, Group, Lamb, Lars, Lion,
    Muon, Nadam, Radam, RmsProp, Rprop, Sgd,
};
use serde_json::{Value, json};

/// Steps of an optimizer. Inputs: parameters `p0, p1, ..`, gradients `g<parameter>_<step>`, of which any may be missing, and states
/// with the names of its state dictionary. The results are the parameters, or the tensors that `returns` lists.
fn steps<O: nn::Optimizer + 'static>(
    name: &'static str,
    make: fn(&Invocation<'_>, Vec<Tensor>) -> Result<O>,
    attributes: Value,
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let copies = (0..).map_while(|i| c.optional(&format!("p{i}"))).map(|p| p.detach().copy()?.require_grad());
        let parameters: Vec<Tensor> = copies.collect::<Result<_>>()?;
        let mut optimizer = make(c, parameters.clone())?;
        if c.attributes.is_listing {
            let attributes = Attributes::new(&json!({"lr": 0.1}));
            list_defaults(c, &make(&Invocation { attributes: &attributes, ..*c }, parameters.clone())?)?;
        }
        if c.attributes.is_listing || c.inputs.iter().any(|(name, _)| name.contains('.')) {
            let state = initial_state(c, optimizer.state_dict()?)?;
            optimizer.load_state_dict(&state)?;
        }
        let mut scaler = scaler(c, &parameters)?;
        for step in 0..step_count(c) {
            for (i, p) in parameters.iter().enumerate() {
                let gradient = c.optional(&format!("g{i}_{step}"));
                p.set_grad(gradient.map(|g| g.detach().copy()).transpose()?)?;
            }
            if c.given("lr").is_some_and(Value::is_array)
                && let Some(lr) = rate(c, step)?
            {
                optimizer.set_lr(lr)?;
            }
            match &mut scaler {
                Some(scaler) => {
                    scaler.step(&mut optimizer)?;
                    scaler.update()?;
                }
                None => optimizer.step_scaled(scaling(c, step)?.as_ref())?,
            }
        }
        returned(c, &parameters, &optimizer, scaler.as_ref())
    };
    let optimizer = move |c: &Invocation<'_>, parameters| Ok(Box::new(make(c, parameters)?) as Box<dyn nn::Optimizer>);
    let make = move |g: &mut Gen| two_steps(g, &attributes);
    Op { optimizer: Some(Box::new(optimizer)), ..Op::new(name, run, make) }
        .derivative(IN_PLACE)
        .class(Optimizer)
        .companion(step_terms)
        .fused()
        .also(&["set_grad", "require_grad"])
        .wide("parameters of 16 bits are rounded after each step")
}

/// The options of an optimizer that was built with a rate alone are the defaults of the attributes.
fn list_defaults(c: &Invocation<'_>, optimizer: &dyn nn::Optimizer) -> Result<()> {
    for (name, t) in optimizer.state_dict()? {
        match name.strip_prefix("group.0.") {
            Some("weight_decay") => c.suppose("wd", t.item::<f64>()?),
            Some(option) if t.numel() == 1 => c.suppose(option, t.item::<f64>()?),
            _ => {}
        }
    }
    Ok(())
}

/// The states from the inputs, with the names of the state dictionary, and initial states for the others. A momentum without a step
/// count comes from an optimizer that does not count steps; some steps have then been taken. Errors: `Attr` if the step count of
/// other states is missing.
fn initial_state(c: &Invocation<'_>, mut state: nn::StateDict) -> Result<nn::StateDict> {
    let is_state =
        |name: &&String| name.split_once('.').is_some_and(|(parameter, _)| parameter.parse::<usize>().is_ok());
    let given: Vec<String> =
        { state.keys() }.filter(is_state).filter(|name| c.optional(name).is_some()).cloned().collect();
    for name in &given {
        let (Some(t), Some((parameter, kind))) = (c.optional(name), name.split_once('.')) else { continue };
        let step = format!("{parameter}.step");
        if !given.contains(&step) {
            let others = given.iter().filter_map(|name| name.strip_prefix(&format!("{parameter}.")));
            if { others }.any(|other| other != "momentum_buffer") {
                return c.fail(&format!("a tensor, but {parameter}.{kind} is there"), &step);
            }
            let taken = state[&step].ones_like()?;
            state.insert(step, taken);
        }
        state.insert(name.clone(), t.clone());
    }
    Ok(state)
}

/// Two steps of one parameter.
fn two_steps(g: &mut Gen, attributes: &Value) -> Case {
    let inputs = ["p0", "g0_0", "g0_1"].map(|name| (name, g.x(Domain::Real)));
    let mut attributes = attributes.clone();
    attributes["lr"] = 0.1.into();
    attributes["wd"] = 0.01.into();
    Case::new(attributes, inputs.to_vec())
}

/// Two steps: plain, with momentum, or with Nesterov's variant.
fn sgd_case(g: &mut Gen) -> Case {
    let attributes = match g.below(3) {
        0 => none(),
        1 => json!({"momentum": 0.9, "dampening": 0.1}),
        _ => json!({"momentum": 0.9, "nesterov": true}),
    };
    two_steps(g, &attributes)
}

/// The step in the name of an input such as `g0_3`.
fn step_of(name: &str) -> Option<usize> {
    name.rsplit_once('_')?.1.parse().ok()
}

fn step_count(c: &Invocation<'_>) -> usize {
    let of_gradients = c.inputs.iter().filter(|(name, _)| name.starts_with('g'));
    of_gradients.filter_map(|(name, _)| step_of(name)).map(|step| step + 1).max().unwrap_or(0)
}

/// The rate of a step: `lr` is a number, or has one number for each step.
fn rate(c: &Invocation<'_>, step: usize) -> Result<Option<f64>> {
    let rate = match c.given("lr") {
        Some(Value::Array(rates)) => match rates.get(step).and_then(Value::as_f64) {
            Some(rate) => Ok(Some(rate)),
            None => c.fail("a number for every step", "lr"),
        },
        Some(_) => c.float("lr").map(Some),
        None => Ok(None),
    };
    c.expect("lr", "a number, or a list of one for each step");
    rate
}

/// The rate of the first step, by default the optimizer's.
fn rate_or(c: &Invocation<'_>, default: f64) -> Result<f64> {
    c.has("lr");
    c.defaults_to("lr", default);
    Ok(rate(c, 0)?.unwrap_or(default))
}

/// The scaling of a step by an external scaler: `inv_scale_<step>` and `found_inf_<step>`.
fn scaling(c: &Invocation<'_>, step: usize) -> Result<Option<Scaling>> {
    let [inv_scale, found_inf] = ["inv_scale", "found_inf"].map(|name| c.optional(&format!("{name}_{step}")));
    match (inv_scale, found_inf) {
        (Some(inv_scale), Some(found_inf)) => Ok(Some(Scaling {
            inv_scale: inv_scale.cast(DType::F32)?,
            found_inf: found_inf.cast(DType::F32)?,
            norm: None,
        })),
        (None, None) => Ok(None),
        _ => c.fail("given with the other", "inv_scale` or `found_inf"),
    }
}

/// A loss scaler, if `init_scale` gives its initial scale.
fn scaler(c: &Invocation<'_>, parameters: &[Tensor]) -> Result<Option<GradScaler>> {
    let first_scale = c.optional_of("init_scale", Invocation::float)?;
    let (growth, backoff) = (c.float_or("growth", 2.0)?, c.float_or("backoff", 0.5)?);
    let (Some(first_scale), Some(first)) = (first_scale, parameters.first()) else { return Ok(None) };
    let mut scaler = GradScaler::new(first.device())?.init_scale(first_scale)?.factors(growth, backoff)?;
    if let Some(steps) = c.optional_of("interval", |c, _| interval(c))? {
        scaler = scaler.growth_interval(steps)?;
    }
    if let Some(tracker) = c.optional("growth_tracker") {
        let mut state = scaler.state_dict()?;
        state.insert("growth_tracker".into(), tracker.clone());
        scaler.load_state_dict(&state)?;
    }
    Ok(Some(scaler))
}

fn interval(c: &Invocation<'_>) -> Result<u32> {
    c.int("interval")?.try_into().or_else(|_| c.fail("a count", "interval"))
}

/// The parameters, or the tensors that `returns` lists: `p0`, states such as `0.exp_avg`, `grad_norm`, and `scale` and
/// `growth_tracker` of a scaler.
fn returned(
    c: &Invocation<'_>,
    parameters: &[Tensor],
    optimizer: &dyn nn::Optimizer,
    scaler: Option<&GradScaler>,
) -> Result<Vec<Tensor>> {
    let Some(names) = c.optional_of("returns", Invocation::words)? else {
        return Ok(parameters.iter().map(Tensor::detach).collect());
    };
    let mut all: nn::StateDict = parameters.iter().enumerate().map(|(i, p)| (format!("p{i}"), p.detach())).collect();
    if names.iter().any(|name| name.contains('.') || name == "lr") {
        all.extend(optimizer.state_dict()?);
    }
    all.extend(scaler.map(GradScaler::state_dict).transpose()?.unwrap_or_default());
    // There is no norm before the first step.
    let norm = optimizer.grad_norm().map_or_else(
        || parameters.first().map(|p| Tensor::zeros((), p.dtype().acc(), p.device())).transpose(),
        |norm| Ok(Some(norm)),
    )?;
    all.extend(norm.map(|norm| ("grad_norm".to_string(), norm)));
    names.iter().map(|name| found(c, &all, name)?.copy()).collect()
}

/// A tensor that `returns` may list.
pub(super) fn found<'a>(c: &Invocation<'_>, all: &'a nn::StateDict, name: &str) -> Result<&'a Tensor> {
    all.get(name).map_or_else(|| c.fail(&format!("a list of tensors that are there, but has {name}"), "returns"), Ok)
}

/// `|p|` plus the absolute value of each step; the same for states.
fn step_terms(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let after = |steps: usize| {
        let is_later = |name: &str| step_of(name).is_some_and(|step| step >= steps);
        let inputs: Vec<_> = c.inputs.iter().filter(|(name, _)| !is_later(name)).cloned().collect();
        c.op.invoke(c.attributes, &inputs)
    };
    let mut before = after(0)?;
    let mut terms: Vec<Tensor> = before.iter().map(Tensor::abs).collect::<Result<_>>()?;
    for steps in 1..=step_count(c) {
        let now = after(steps)?;
        for (i, y) in now.iter().enumerate() {
            terms[i] = terms[i].add(&y.sub(&before[i])?.abs()?)?;
        }
        before = now;
    }
    Ok(terms)
}

/// Groups of parameters by their numbers, such as `[[1], [2, 3]]`.
fn groups(c: &Invocation<'_>, parameters: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
    let one = |v: &Value| v.as_array()?.iter().map(|i| parameters.get(i.as_u64()? as usize).cloned()).collect();
    let all = |v: &Value| v.as_array()?.iter().map(one).collect();
    let given = c.optional_of("groups", |c, name| c.get(name, "lists of the parameters' numbers", all))?;
    Ok(given.unwrap_or_default())
}

/// The options of an optimizer, or of one of its groups. Options of a group have the prefix `group<number>_`.
struct Given<'a, 'b> {
    c: &'a Invocation<'b>,
    prefix: String,
}

impl Given<'_, '_> {
    fn number(&self, option: &str) -> Result<Option<f64>> {
        self.c.optional_of(&format!("{}{option}", self.prefix), Invocation::float)
    }

    fn flag(&self, option: &str) -> Result<Option<bool>> {
        self.c.optional_of(&format!("{}{option}", self.prefix), Invocation::flag)
    }

    /// Two options that are set together. A group may give one of them.
    fn pair(&self, first: (&str, f64), second: (&str, f64)) -> Result<(f64, f64)> {
        let one = |(name, default)| Ok(self.number(name)?.unwrap_or(self.c.float_or(name, default)?));
        Ok((one(first)?, one(second)?))
    }
}

/// Sets the given numeric options.
macro_rules! with {
    ($of:ident, $to:expr, [$($name:literal => $option:ident),*]) => {{
        let to = $to;
        $(let to = if let Some(v) = $of.number($name)? { to.$option(v) } else { to };)*
        to
    }};
}

/// An optimizer with the common options, and the options that `$options` sets, for itself and its groups.
macro_rules! optimizer {
    ($c:ident, $name:ident, $parameters:ident, lr $lr:expr, |$of:ident, $to:ident| $options:block) => {{
        let groups = groups($c, &$parameters)?;
        let $of = Given { c: $c, prefix: String::new() };
        let $to = with!($of, $name::from_parameters($parameters).lr($lr), ["wd" => weight_decay]);
        let $to = with!($of, $to, ["clip_norm" => clip_norm, "clip_value" => clip_value]);
        let $to = if $of.flag("maximize")?.unwrap_or(false) { $to.maximize() } else { $to };
        let mut optimizer = $options;
        for (i, members) in groups.into_iter().enumerate() {
            let $of = Given { c: $c, prefix: format!("group{i}_") };
            let $to = with!($of, Group::<$name>::default(), ["lr" => lr, "wd" => weight_decay]);
            let $to = if $of.flag("maximize")?.unwrap_or(false) { $to.maximize() } else { $to };
            let group = $options;
            optimizer = optimizer.group(members, |_| group);
        }
        Ok(optimizer)
    }};
}

fn sgd(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Sgd> {
    let Some(lr) = rate(c, 0)? else { return c.fail("a number", "lr") };
    optimizer!(c, Sgd, parameters, lr lr, |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "dampening" => dampening]);
        if of.flag("nesterov")?.unwrap_or(false) { to.nesterov() } else { to }
    })
}

macro_rules! adam {
    ($name:ident, $optimizer:ident) => {
        fn $name(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<$optimizer> {
            optimizer!(c, $optimizer, parameters, lr rate_or(c, 1e-3)?, |of, to| {
                let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
                let to = with!(of, to.betas(beta1, beta2), ["eps" => eps]);
                let to = if of.flag("amsgrad")?.unwrap_or(false) { to.amsgrad() } else { to };
                if of.flag("bias_correction")?.unwrap_or(true) { to } else { to.no_bias_correction() }
            })
        }
    };
}

adam!(adam, Adam);
adam!(adamw, AdamW);

fn rmsprop(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<RmsProp> {
    optimizer!(c, RmsProp, parameters, lr rate_or(c, 1e-2)?, |of, to| {
        let to = with!(of, to, ["alpha" => alpha, "eps" => eps, "momentum" => momentum]);
        if of.flag("centered")?.unwrap_or(false) { to.centered() } else { to }
    })
}

fn adagrad(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Adagrad> {
    optimizer!(c, Adagrad, parameters, lr rate_or(c, 1e-2)?, |of, to| {
        with!(of, to, ["lr_decay" => lr_decay, "initial_accumulator" => initial_accumulator, "eps" => eps])
    })
}

fn adamax(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Adamax> {
    optimizer!(c, Adamax, parameters, lr rate_or(c, 2e-3)?, |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
        with!(of, to.betas(beta1, beta2), ["eps" => eps])
    })
}

fn nadam(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Nadam> {
    optimizer!(c, Nadam, parameters, lr rate_or(c, 2e-3)?, |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
        let to = if of.flag("decoupled_weight_decay")?.unwrap_or(false) { to.decoupled_weight_decay() } else { to };
        with!(of, to.betas(beta1, beta2), ["eps" => eps, "momentum_decay" => momentum_decay])
    })
}

fn radam(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Radam> {
    optimizer!(c, Radam, parameters, lr rate_or(c, 1e-3)?, |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
        let to = if of.flag("decoupled_weight_decay")?.unwrap_or(false) { to.decoupled_weight_decay() } else { to };
        with!(of, to.betas(beta1, beta2), ["eps" => eps])
    })
}

fn adadelta(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Adadelta> {
    optimizer!(c, Adadelta, parameters, lr rate_or(c, 1.0)?, |of, to| {
        with!(of, to, ["rho" => rho, "eps" => eps])
    })
}

fn rprop(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Rprop> {
    optimizer!(c, Rprop, parameters, lr rate_or(c, 1e-2)?, |of, to| {
        let (shrink, grow) = of.pair(("eta_minus", 0.5), ("eta_plus", 1.2))?;
        let (least, most) = of.pair(("step_min", 1e-6), ("step_max", 50.0))?;
        to.etas(shrink, grow).step_sizes(least, most)
    })
}

fn asgd(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Asgd> {
    optimizer!(c, Asgd, parameters, lr rate_or(c, 1e-2)?, |of, to| {
        with!(of, to, ["lambda" => lambda, "alpha" => alpha, "t0" => t0])
    })
}

fn lion(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Lion> {
    optimizer!(c, Lion, parameters, lr rate_or(c, 1e-4)?, |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.99))?;
        to.betas(beta1, beta2)
    })
}

fn adafactor(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Adafactor> {
    optimizer!(c, Adafactor, parameters, lr rate_or(c, 1e-2)?, |of, to| {
        let (eps1, eps2) = of.pair(("eps1", 0.0), ("eps2", 1e-3))?;
        with!(of, to.eps(eps1, eps2), ["beta2_decay" => beta2_decay, "clip_threshold" => clip_threshold])
    })
}

fn lars(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Lars> {
    optimizer!(c, Lars, parameters, lr rate_or(c, 1e-3)?, |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "trust" => trust, "eps" => eps]);
        let to = if of.flag("skip")?.unwrap_or(false) { to.skip_trust_ratio() } else { to };
        if of.flag("nesterov")?.unwrap_or(false) { to.nesterov() } else { to }
    })
}

fn lamb(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Lamb> {
    optimizer!(c, Lamb, parameters, lr rate_or(c, 1e-3)?, |of, to| {
        let (beta1, beta2) = of.pair(("beta1", 0.9), ("beta2", 0.999))?;
        let to = with!(of, to.betas(beta1, beta2), ["eps" => eps, "max_trust" => max_trust]);
        let to = if of.flag("skip")?.unwrap_or(false) { to.skip_trust_ratio() } else { to };
        if of.flag("bias_correction")?.unwrap_or(true) { to } else { to.no_bias_correction() }
    })
}

/// The default dtype of the iteration is the parameters' accumulation dtype, which the comparison requires.
fn muon(c: &Invocation<'_>, parameters: Vec<Tensor>) -> Result<Muon> {
    let dtype = c.dtype_or("ns_dtype", parameters.first().map_or(DType::F32, |p| p.dtype().acc()))?;
    let steps = c.int_or("ns_steps", 5)?.try_into().or_else(|_| c.fail("a count", "ns_steps"))?;
    let adjust = [("original", Adjust::Original), ("match_rms_adamw", Adjust::MatchRmsAdamW)];
    let adjust = c.choice_or_first("adjust", &adjust)?;
    let coefficients = [c.float_or("a", 3.4445)?, c.float_or("b", -4.7750)?, c.float_or("c", 2.0315)?];
    optimizer!(c, Muon, parameters, lr rate_or(c, 1e-3)?, |of, to| {
        let to = with!(of, to, ["momentum" => momentum, "eps" => eps]);
        let to = to.ns_steps(steps).ns_coefficients(coefficients).adjust(adjust).ns_dtype(dtype);
        if of.flag("nesterov")?.unwrap_or(true) { to } else { to.no_nesterov() }
    })
}

/// Two steps of matrices, of which two have the same shape.
fn matrix_steps(g: &mut Gen) -> Case {
    // A step has some hundred products.
    let [a, b] = [g.side(), g.side()].map(|side| side.div_ceil(2));
    let shapes = [vec![a, b], vec![a, b], vec![b, 1, a]];
    let mut inputs = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        for name in [format!("p{i}"), format!("g{i}_0"), format!("g{i}_1")] {
            inputs.push((name, g.tensor(Domain::Real, shape)));
        }
    }
    Case { inputs, ..Case::new(json!({"lr": 0.1, "wd": 0.1}), vec![]) }
}

fn clip_norm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let clip = if c.flag("error_if_nonfinite")? { nn::clip_grad_norm_finite } else { nn::clip_grad_norm };
    let total = clip(&parameters, c.float("max_norm")?, c.float("norm_type")?)?;
    Ok(gradients(&parameters).into_iter().chain([total]).collect())
}

/// Leaves whose gradients are the inputs, or copies of them if the call is not in place.
pub(super) fn with_gradients(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let leaf = |g: &Tensor| {
        let (p, g) = if c.is_in_place {
            (g.require_grad()?, g.detach())
        } else {
            (g.zeros_like()?.require_grad()?, g.detach().copy()?)
        };
        p.set_grad(Some(g))?;
        Ok(p)
    };
    c.all().into_iter().map(leaf).collect()
}

fn gradients(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().filter_map(Tensor::grad).collect()
}

/// The gradients divided by a loss scale, and the scale after a step with them: lower if a gradient was not finite.
fn unscale(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let Some(first) = parameters.first() else { return c.fail("a tensor", "g0") };
    let (scale, found) =
        (Tensor::scalar(c.float("scale")? as f32, first.device())?, Tensor::scalar(0f32, first.device())?);
    let (changed, tracker) = (gradients(&parameters), Tensor::scalar(0i32, first.device())?);
    no_grad(|| {
        unscale_(&changed.iter().collect::<Vec<_>>(), &scale, &found)?;
        update_(Pointwise::AmpUpdateScale, &[&scale, &tracker], &[&found], &[2.0, 0.5, 2000.0])
    })?;
    Ok(changed.into_iter().chain([scale]).collect())
}

/// Scale and counter after three steps with the same gradients.
fn update_scale(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let parameters = with_gradients(c)?;
    let Some(first) = parameters.first() else { return c.fail("a tensor", "g0") };
    let scaler = GradScaler::new(first.device())?.init_scale(c.float("scale")?)?;
    let mut scaler = scaler.factors(c.float("growth")?, c.float("backoff")?)?.growth_interval(interval(c)?)?;
    for _ in 0..3 {
        scaler.unscale_(&Sgd::from_parameters(parameters.clone()))?;
        scaler.update()?;
    }
    let state = scaler.state_dict()?;
    ["scale", "growth_tracker"].map(|name| state[name].copy()).into_iter().collect()
}

pub(super) fn ops() -> Vec<Op> {
    vec![
        Op { make: Box::new(sgd_case), ..steps("sgd", sgd, none()) }
            .kernels(&["sgd_step", "sgd_momentum_update", "nag_step"])
            .launches(13, 0)
            .bench(stepped("", |c| training(c, &parameters(c), |p| Box::new(Sgd::from_parameters(p))), |c| c.whole(3)))
            .bench(with_momentum()),
        steps("adam", adam, json!({"amsgrad": false})).kernels(&["adam_step"]).launches(17, 0).bench(stepped(
            "",
            |c| training(c, &parameters(c), |p| Box::new(Adam::from_parameters(p))),
            |c| c.whole(7),
        )),
        steps("adamw", adamw, json!({"amsgrad": true})).kernels(&["adamw_step"]).launches(18, 0).bench(stepped(
            "",
            |c| training(c, &parameters(c), |p| Box::new(AdamW::from_parameters(p))),
            |c| c.whole(7),
        )),
        steps("rmsprop", rmsprop, json!({"momentum": 0.9, "centered": true}))
            .kernels(&["rmsprop_step"])
            .launches(15, 0)
            .bench(stepped(
                "",
                |c| training(c, &parameters(c), |p| Box::new(RmsProp::from_parameters(p))),
                |c| c.whole(5),
            )),
        steps("adagrad", adagrad, json!({"lr_decay": 0.1, "initial_accumulator": 0.5}))
            .kernels(&["adagrad_step"])
            .launches(14, 0)
            .bench(stepped(
                "",
                |c| training(c, &parameters(c), |p| Box::new(Adagrad::from_parameters(p))),
                |c| c.whole(5),
            )),
        steps("adamax", adamax, none()).launches(17, 0),
        steps("nadam", nadam, none()).launches(20, 0),
        // The variance is defined from the first step on.
        steps("radam", radam, json!({"beta2": 0.7})).launches(17, 0),
        steps("adadelta", adadelta, none()).launches(17, 0),
        steps("rprop", rprop, none()).launches(17, 0),
        steps("asgd", asgd, json!({"t0": 0.0})).launches(17, 0),
        steps("lion", lion, none()).launches(15, 0),
        Op { fused: false, ..steps("adafactor", adafactor, none()) }.class(Stages).launches(120, 0),
        steps("lars", lars, json!({"trust": 0.5, "nesterov": true})).kernels(&["lars_step"]).launches(17, 0).bench(
            // The norms read the parameters and the gradients first.
            stepped("", |c| training(c, &parameters(c), |p| Box::new(Lars::from_parameters(p))), |c| c.whole(7)),
        ),
        steps("lamb", lamb, json!({"max_trust": 2.0})).kernels(&["lamb_step"]).launches(20, 0).bench(
            // The moments are written before the norms are known, and read again afterwards.
            stepped("", |c| training(c, &parameters(c), |p| Box::new(Lamb::from_parameters(p))), |c| c.whole(10)),
        ),
        Op { make: Box::new(matrix_steps), ..steps("muon", muon, none()) }
            .class(Stages)
            .kernels(&["muon_step"])
            .launches(101, 0)
            .bench([of_gpt2()]),
        Op::new("clip_grad_norm", clip_norm, |g| {
            let attributes = json!({"max_norm": 1.0, "norm_type": g.pick(&["1", "2", "inf", "3"])});
            Case::new(attributes, vec![("g0", g.x(Domain::Real)), ("g1", g.x(Domain::Real))])
        })
        .changes(Changes::Every)
        .class(Reduction)
        .fused()
        .kernels(&["gradient_clip_norm", "scale_gradient"])
        .derivative(IN_PLACE)
        .also(&["require_grad"])
        .launches(29, 0)
        .bench(stepped("", clipping, |c| c.whole(3))),
        Op::new(
            "clip_grad_value",
            |c| {
                let parameters = with_gradients(c)?;
                nn::clip_grad_value(&parameters, c.float("clip")?)?;
                Ok(gradients(&parameters))
            },
            |g| Case::new(json!({"clip": 1.0}), vec![("g0", g.x(Domain::Real))]),
        )
        .changes(Changes::Every)
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["gradient_clip_value"])
        .also(&["require_grad"])
        .launches(3, 0),
        Op::new("unscale_", unscale, |g| {
            let attributes = json!({"scale": 1024.0});
            Case::new(attributes, vec![("g0", g.x(Domain::Real)), ("g1", g.x(Domain::Real))])
        })
        .changes(Changes::Every)
        .class(Arithmetic)
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["amp_unscale_check"])
        .also(&["require_grad", "grad_scaler"])
        .launches(9, 0),
        Op::new("grad_scaler", update_scale, |g| {
            let bad = g.coin();
            let g0 = g.x(Domain::Real);
            let g0 = if bad { g0.div_scalar(0.0).expect("floats divide") } else { g0 };
            Case::new(json!({"scale": 8.0, "growth": 2.0, "backoff": 0.5, "interval": 2}), vec![("g0", g0)])
        })
        .fused()
        .derivative(IN_PLACE)
        .kernels(&["amp_update_scale"])
        .also(&["require_grad", "unscale_"])
        .launches(14, 0),
        Op::new(
            "accumulate_grad",
            |c| {
                let y = c.changed("y")?;
                no_grad(|| update_(Pointwise::Accumulate, &[&y], &[c.input("x")?], &[]))?;
                Ok(vec![y])
            },
            |g| Case::new(none(), vec![("y", g.x(Domain::Real)), ("x", g.broadcast(Domain::Real))]),
        )
        .changes(Changes::All)
        .class(Arithmetic)
        .companion(sum_of_two)
        .derivative(IN_PLACE)
        .launches(2, 0),
    ]
}

/// A hundred million parameters in one tensor, and in 300.
const PARAMETERS: [[usize; 2]; 2] = [[1, 100_000_000], [300, 333_333]];

/// The timed step for these numbers of parameters. Gradients are read; parameters and states are read and written.
fn stepped(variant: &'static str, work: fn(&Call) -> Result<Work>, cost: fn(&Call) -> Cost) -> [Bench; 2] {
    PARAMETERS.map(|dims| Bench::new(&dims, Action::Work(work), cost).shrinks(2).variant(variant))
}

/// The momentum is f32 even for 16-bit parameters.
fn with_momentum() -> [Bench; 2] {
    let cost = |c: &Call| Cost::bytes(c.bytes(3 * c.numel()) + 2 * c.numel() * size_of::<f32>());
    stepped("momentum", |c| training(c, &parameters(c), |p| Box::new(Sgd::from_parameters(p).momentum(0.9))), cost)
        .map(|bench| bench.dtypes(STORED))
}

/// The matrices of GPT-2, for a shape of layers and their width. The products are not in the parameters' dtype; the bytes count the
/// step alone.
fn of_gpt2() -> Bench {
    let work = Action::Work(|c| training(c, &of_layers(c), |p| Box::new(Muon::from_parameters(p))));
    let cost = |c: &Call| Cost::bytes(c.bytes(5 * 12 * c.dims[0] * c.dims[1].pow(2)));
    Bench::new(&[12, 768], work, cost)
}

fn of_layers(c: &Call) -> Vec<Vec<usize>> {
    let w = c.dims[1];
    vec![[vec![w, 3 * w], vec![w, w], vec![w, 4 * w], vec![4 * w, w]]; c.dims[0]].concat()
}

fn parameters(c: &Call) -> Vec<Vec<usize>> {
    vec![c.dims[1..].to_vec(); c.dims[0]]
}

/// Leaves of these shapes and their gradients.
fn leaves(c: &Call, shapes: &[Vec<usize>]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    shapes.iter().map(|dims| Ok((c.normal(dims)?.require_grad()?, c.normal(dims)?))).collect()
}

/// Steps of an optimizer, which clears the gradients each time.
fn training(c: &Call, shapes: &[Vec<usize>], optimizer: fn(Vec<Tensor>) -> Box<dyn nn::Optimizer>) -> Result<Work> {
    let (parameters, gradients) = leaves(c, shapes)?;
    let mut optimizer = optimizer(parameters.clone());
    Ok(Box::new(move || {
        for (parameter, gradient) in parameters.iter().zip(&gradients) {
            parameter.set_grad(Some(gradient.clone()))?;
        }
        optimizer.step()
    }))
}

fn clipping(c: &Call) -> Result<Work> {
    let (parameters, gradients) = leaves(c, &parameters(c))?;
    for (parameter, gradient) in parameters.iter().zip(gradients) {
        parameter.set_grad(Some(gradient))?;
    }
    Ok(Box::new(move || nn::clip_grad_norm(&parameters, 1.0, 2.0).map(drop)))
}
