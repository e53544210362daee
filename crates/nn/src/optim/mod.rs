//! Optimizers. Everything that changes from step to step (rate, step count, scale) lives on the device.

use crate::clip::{clip_factor, scalar_dtype, total_norm};
use crate::{Module, StateDict};
use isograd_core::ops::update_;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Tensor, no_grad};

/// What a training loop needs of an optimizer.
pub trait Optimizer {
    /// Updates every parameter that has a gradient, then forgets the gradients. Errors: `Attr` for an option out of its
    /// range.
    fn step(&mut self) -> Result<()> {
        self.step_scaled(None)
    }

    /// [`step`](Optimizer::step) with gradients multiplied by a device scalar; where `found_inf` is not 0 nothing
    /// changes, the step count included.
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()>;

    /// The parameters of all groups.
    fn parameters(&self) -> Vec<Tensor>;

    /// Sets the learning rate of all groups.
    fn set_lr(&mut self, lr: f64) -> Result<()>;

    /// State, step counts and learning rates by name.
    fn state_dict(&self) -> Result<StateDict>;

    /// Takes over what [`state_dict`](Optimizer::state_dict) gave. Errors: `Value` naming what is missing, unexpected or
    /// of another shape; then nothing has changed.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;

    /// Forgets the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            // A leaf takes any gradient, and none.
            let _ = parameter.set_grad(None);
        }
    }
}

/// What a [`GradScaler`](crate::GradScaler) tells an optimizer, on the device.
pub struct Scaling {
    /// Multiplies the gradients; rank 0, f32.
    pub inv_scale: Tensor,
    /// Not 0 if a gradient was not finite; rank 0, f32.
    pub found_inf: Tensor,
}

/// The update rule of one kind of optimizer.
pub trait Algorithm: Clone {
    /// Errors with `Attr` if an option is out of its range.
    fn check(&self) -> Result<()>;

    /// The names of the states that a parameter has.
    fn states(&self) -> &'static [&'static str];

    /// What a group's parameters share in a step: device scalars from the rate and the step counts before and after.
    fn shared(&self, lr: &Tensor, before: &Tensor, after: &Tensor) -> Result<Vec<Tensor>>;

    /// The kernel with its attributes. Its operands are parameter and states; gradient, shared, scale and found_inf.
    fn kernel(&self) -> (Pointwise, Vec<f64>);

    /// The index among the inputs where scale and found_inf stand, counted from the shared scalars on.
    fn scale_at(&self) -> usize;
}

/// An optimizer with the update rule `A` over groups of parameters.
pub struct Groups<A> {
    groups: Vec<Group<A>>,
    clip_norm: Option<f64>,
}

/// Parameters with options of their own.
#[derive(Clone)]
pub struct Group<A> {
    algorithm: A,
    lr: f64,
    parameters: Vec<Tensor>,
    /// Rate and step count on the device, and the states of each parameter, once there was a step.
    running: Option<Running>,
}

#[derive(Clone)]
struct Running {
    lr: Tensor,
    step: Tensor,
    states: Vec<Vec<Tensor>>,
}

/// Stochastic gradient descent, with momentum and Nesterov's variant.
pub type Sgd = Groups<SgdRule>;
/// Adam. Kingma, Ba 2014, arXiv 1412.6980.
pub type Adam = Groups<AdamRule>;

/// Adam with weight decay apart from the gradient. Loshchilov, Hutter 2017, arXiv 1711.05101.
pub struct AdamW;

impl AdamW {
    /// Rate 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(model: &(impl Module + ?Sized)) -> Adam {
        let rule = AdamRule { decay: 0.01, coupling: Coupling::Decoupled, ..AdamRule::default() };
        Groups::over(model.parameters(), 1e-3, rule)
    }
}

impl<A: Algorithm> Groups<A> {
    fn over(parameters: Vec<Tensor>, lr: f64, algorithm: A) -> Self {
        let group = Group { algorithm, lr, parameters, running: None };
        Groups { groups: vec![group], clip_norm: None }
    }

    /// The learning rate of all groups so far.
    pub fn lr(mut self, lr: f64) -> Self {
        self.groups.iter_mut().for_each(|g| g.lr = lr);
        self
    }

    /// Before each step scales the gradients of all groups so that their total norm is at most `max_norm`.
    pub fn clip_norm(mut self, max_norm: f64) -> Self {
        self.clip_norm = Some(max_norm);
        self
    }

    /// Moves `parameters` into a group of their own, whose options start as the first group's and are then changed by
    /// `options`.
    pub fn group(mut self, parameters: Vec<Tensor>, options: impl FnOnce(Group<A>) -> Group<A>) -> Self {
        let is_moved = |t: &Tensor| parameters.iter().any(|p| p.shares_memory(t));
        self.groups.iter_mut().for_each(|g| g.parameters.retain(|t| !is_moved(t)));
        let first = Group { running: None, parameters, ..self.groups[0].clone() };
        self.groups.push(options(first));
        self
    }

    fn map(mut self, f: impl Fn(&mut A)) -> Self {
        self.groups.iter_mut().for_each(|g| f(&mut g.algorithm));
        self
    }
}

impl<A: Algorithm> Group<A> {
    /// The learning rate.
    pub fn lr(mut self, lr: f64) -> Self {
        self.lr = lr;
        self
    }

    fn map(mut self, f: impl FnOnce(&mut A)) -> Self {
        f(&mut self.algorithm);
        self
    }

    /// The state, made of zeros before the first step.
    fn start(&mut self) -> Result<&mut Running> {
        self.algorithm.check()?;
        if self.lr.is_nan() || self.lr < 0.0 {
            return Err(Error::attr("optimizer", format!("lr is {}, expected at least 0", self.lr)));
        }
        let running = match self.running.take() {
            Some(running) => running,
            None => Running::new(&self.parameters, self.lr, self.algorithm.states().len())?,
        };
        Ok(self.running.insert(running))
    }

    fn step(&mut self, scale: Option<&Tensor>, found_inf: Option<&Tensor>) -> Result<()> {
        if self.parameters.is_empty() {
            return Ok(());
        }
        self.start()?;
        let Some(running) = &self.running else { return Ok(()) };
        let dtype = running.lr.dtype();
        let constant = |v: f64| running.lr.full_like(v);
        let scale = scale.map_or_else(|| constant(1.0), |s| s.cast(dtype))?;
        let found_inf = found_inf.map_or_else(|| constant(0.0), |f| f.cast(dtype))?;
        // The step count stays where the step is left out.
        let after = running.step.add(&found_inf.eq_scalar(0.0)?.cast(dtype)?)?;
        let mut inputs = self.algorithm.shared(&running.lr, &running.step, &after)?;
        let at = self.algorithm.scale_at();
        inputs.splice(at..at, [scale, found_inf]);
        let (row, attributes) = self.algorithm.kernel();
        for (parameter, states) in self.parameters.iter().zip(&running.states) {
            let Some(gradient) = parameter.grad() else { continue };
            let gradient = gradient.detach();
            let targets: Vec<&Tensor> = std::iter::once(parameter).chain(states).collect();
            let inputs: Vec<&Tensor> = std::iter::once(&gradient).chain(&inputs).collect();
            update_(row.name(), row, &targets, &inputs, &attributes)?;
        }
        running.step.copy_(&after)
    }
}

impl Running {
    fn new(parameters: &[Tensor], lr: f64, states: usize) -> Result<Running> {
        let dtype = if parameters.iter().any(|p| p.dtype() == DType::F64) { DType::F64 } else { DType::F32 };
        let zeros = |p: &Tensor| (0..states).map(|_| Tensor::zeros(p.shape(), scalar_dtype(p), p.device())).collect();
        let device = parameters[0].device();
        Ok(Running {
            lr: Tensor::full((), lr, dtype, device)?,
            step: Tensor::zeros((), dtype, device)?,
            states: parameters.iter().map(zeros).collect::<Result<_>>()?,
        })
    }
}

impl<A: Algorithm> Optimizer for Groups<A> {
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        no_grad(|| {
            let mut scale = scaling.map(|s| s.inv_scale.clone());
            if let Some(max_norm) = self.clip_norm {
                scale = clipping(&self.parameters(), scale, max_norm)?;
            }
            let found_inf = scaling.map(|s| &s.found_inf);
            self.groups.iter_mut().try_for_each(|group| group.step(scale.as_ref(), found_inf))
        })?;
        self.zero_grad();
        Ok(())
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.groups.iter().flat_map(|g| g.parameters.iter().cloned()).collect()
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        for group in &mut self.groups {
            group.lr = lr;
            if let Some(running) = &group.running {
                running.lr.fill_(lr)?;
            }
        }
        Ok(())
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for (i, group) in self.groups.iter().enumerate().filter(|(_, g)| !g.parameters.is_empty()) {
            let mut group = group.clone();
            let names = group.algorithm.states();
            let running = group.start()?;
            state.insert(format!("{i}.lr"), running.lr.clone());
            state.insert(format!("{i}.step"), running.step.clone());
            for (k, states) in running.states.iter().enumerate() {
                state.extend(names.iter().zip(states).map(|(name, t)| (format!("{i}.{k}.{name}"), t.clone())));
            }
        }
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        for group in self.groups.iter_mut().filter(|g| !g.parameters.is_empty()) {
            group.start()?;
        }
        // The optimizer's own tensors are loaded as a module's are.
        struct Own(StateDict);
        impl Module for Own {
            fn visit(&self, visitor: &mut crate::Visitor<'_>) {
                self.0.iter().for_each(|(name, t)| visitor.part(name, t));
            }
        }
        Own(self.state_dict()?).load_state_dict(state)?;
        for group in &mut self.groups {
            if let Some(running) = &group.running {
                group.lr = running.lr.item()?;
            }
        }
        Ok(())
    }
}

/// The scale that also brings the total norm of the scaled gradients down to `max_norm`.
fn clipping(parameters: &[Tensor], scale: Option<Tensor>, max_norm: f64) -> Result<Option<Tensor>> {
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
    let Some(first) = gradients.first() else { return Ok(scale) };
    let total = total_norm(&gradients, 2.0, first.device(), scalar_dtype(first))?;
    Ok(Some(match scale {
        None => clip_factor(&total, max_norm)?,
        Some(scale) => {
            let scale = scale.cast(total.dtype())?;
            scale.mul(&clip_factor(&total.mul(&scale)?, max_norm)?)?
        }
    }))
}

/// The rule of [`Sgd`].
#[derive(Clone, Debug, Default)]
pub struct SgdRule {
    decay: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    /// Rate 1e-3, without momentum or weight decay.
    pub fn new(model: &(impl Module + ?Sized)) -> Sgd {
        Groups::over(model.parameters(), 1e-3, SgdRule::default())
    }

    /// `b = momentum b + (1 - dampening) g`, which takes the gradient's place; the first step's b is g.
    pub fn momentum(self, momentum: f64) -> Self {
        self.map(|a| a.momentum = momentum)
    }

    /// See [`momentum`](Sgd::momentum).
    pub fn dampening(self, dampening: f64) -> Self {
        self.map(|a| a.dampening = dampening)
    }

    /// `g + momentum b` takes the gradient's place. Sutskever et al. 2013, ICML.
    pub fn nesterov(self) -> Self {
        self.map(|a| a.nesterov = true)
    }

    /// Adds `decay p` to the gradient.
    pub fn weight_decay(self, decay: f64) -> Self {
        self.map(|a| a.decay = decay)
    }
}

impl Group<SgdRule> {
    /// Adds `decay p` to the gradient.
    pub fn weight_decay(self, decay: f64) -> Self {
        self.map(|a| a.decay = decay)
    }
}

fn check_at_least_0(options: &[(&str, f64)]) -> Result<()> {
    match options.iter().find(|(_, v)| v.is_nan() || *v < 0.0) {
        Some((name, v)) => Err(Error::attr("optimizer", format!("{name} is {v}, expected at least 0"))),
        None => Ok(()),
    }
}

impl Algorithm for SgdRule {
    fn check(&self) -> Result<()> {
        check_at_least_0(&[("momentum", self.momentum), ("weight_decay", self.decay)])?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            let message = "nesterov needs a momentum and no dampening";
            return Err(Error::attr("optimizer", message));
        }
        Ok(())
    }

    fn states(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn shared(&self, lr: &Tensor, before: &Tensor, _: &Tensor) -> Result<Vec<Tensor>> {
        Ok(if self.momentum == 0.0 { vec![lr.clone()] } else { vec![lr.clone(), before.clone()] })
    }

    fn scale_at(&self) -> usize {
        1
    }

    fn kernel(&self) -> (Pointwise, Vec<f64>) {
        if self.momentum == 0.0 {
            return (Pointwise::SgdStep, vec![self.decay]);
        }
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        (Pointwise::SgdMomentumUpdate, vec![self.decay, self.momentum, self.dampening, nesterov])
    }
}

/// How weight decay acts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Coupling {
    /// It is added to the gradient.
    Coupled,
    /// It shrinks the parameter.
    Decoupled,
}

/// The rule of [`Adam`] and [`AdamW`].
#[derive(Clone, Debug)]
pub struct AdamRule {
    decay: f64,
    coupling: Coupling,
    beta1: f64,
    beta2: f64,
    eps: f64,
    amsgrad: bool,
}

impl Default for AdamRule {
    fn default() -> Self {
        AdamRule { decay: 0.0, coupling: Coupling::Coupled, beta1: 0.9, beta2: 0.999, eps: 1e-8, amsgrad: false }
    }
}

impl Adam {
    /// Rate 1e-3, betas 0.9 and 0.999, eps 1e-8, no weight decay.
    pub fn new(model: &(impl Module + ?Sized)) -> Adam {
        Groups::over(model.parameters(), 1e-3, AdamRule::default())
    }

    /// The decay rates of the two moments.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        self.map(|a| (a.beta1, a.beta2) = (beta1, beta2))
    }

    /// Added to the root of the second moment.
    pub fn eps(self, eps: f64) -> Self {
        self.map(|a| a.eps = eps)
    }

    /// Weight decay: in the gradient for [`Adam`], apart from it for [`AdamW`].
    pub fn weight_decay(self, decay: f64) -> Self {
        self.map(|a| a.decay = decay)
    }

    /// Divides by the largest second moment so far. Reddi et al. 2018, ICLR.
    pub fn amsgrad(self) -> Self {
        self.map(|a| a.amsgrad = true)
    }
}

impl Group<AdamRule> {
    /// Weight decay of this group.
    pub fn weight_decay(self, decay: f64) -> Self {
        self.map(|a| a.decay = decay)
    }
}

impl Algorithm for AdamRule {
    fn check(&self) -> Result<()> {
        check_at_least_0(&[("eps", self.eps), ("weight_decay", self.decay)])?;
        match [self.beta1, self.beta2].into_iter().find(|b| !(0.0..1.0).contains(b)) {
            Some(beta) => Err(Error::attr("optimizer", format!("a beta is {beta}, expected 0 to below 1"))),
            None => Ok(()),
        }
    }

    fn states(&self) -> &'static [&'static str] {
        if self.amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
    }

    fn shared(&self, lr: &Tensor, _: &Tensor, after: &Tensor) -> Result<Vec<Tensor>> {
        // 1 - beta^t as -expm1(t ln beta), which is exact for small t.
        let bias = |beta: f64| after.mul_scalar(beta.ln())?.expm1()?.neg();
        let shrink = match self.coupling {
            Coupling::Coupled => lr.full_like(1.0)?,
            Coupling::Decoupled => lr.mul_scalar(self.decay)?.rsub_scalar(1.0)?,
        };
        Ok(vec![lr.div(&bias(self.beta1)?)?, bias(self.beta2)?.rsqrt()?, shrink])
    }

    fn scale_at(&self) -> usize {
        3
    }

    fn kernel(&self) -> (Pointwise, Vec<f64>) {
        let row = if self.amsgrad { Pointwise::AdamAmsgradStep } else { Pointwise::AdamStep };
        let decay = if self.coupling == Coupling::Coupled { self.decay } else { 0.0 };
        (row, vec![decay, self.beta1, self.beta2, self.eps])
    }
}
