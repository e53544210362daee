//! What all optimizers do around their rule: groups, step counts, states, scaling, saving.

use super::{Group, Scaling};
use crate::StateDict;
use crate::clip::{clip_factor, total_norm};
use crate::module::{check_state, same_tensor};
use isograd_core::ops::update_;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Tensor, no_grad};

/// The update rule of one kind of optimizer.
pub(super) trait Rule {
    /// For errors.
    const NAME: &'static str;

    /// Errors with `Attr` if an option is out of its range.
    fn check(&self) -> Result<()>;

    /// The names of the states that a parameter has.
    fn states(&self) -> &'static [&'static str];

    /// The device scalars that follow the gradient among the row's inputs, once for all parameters of a lane.
    fn inputs(&self, shared: &Shared<'_>) -> Result<Vec<Tensor>>;

    /// The row with its attributes. It updates the parameter and its states.
    fn row(&self, weight_decay: f64) -> (Pointwise, Vec<f64>);
}

/// What a rule may use: rank-0 tensors of one dtype.
pub(super) struct Shared<'a> {
    pub lr: &'a Tensor,
    /// The number of steps without and with this one.
    pub steps_before: &'a Tensor,
    pub steps_after: &'a Tensor,
    /// Multiplies the gradient.
    pub scale: &'a Tensor,
    pub found_inf: &'a Tensor,
    pub one: &'a Tensor,
    pub weight_decay: f64,
}

/// An optimizer with the update rule `R`.
pub(super) struct Engine<R> {
    pub rule: R,
    lr: f64,
    pub weight_decay: f64,
    pub clip_norm: Option<f64>,
    /// Multiplies the gradients: 1 down, -1 up.
    pub sign: f64,
    pub grad_norm: Option<Tensor>,
    parameters: Vec<Parameter>,
    groups: Vec<Group>,
    /// The rate to which the groups' own rates relate: the one that the optimizer was built with.
    base_lr: f64,
    /// Empty before the first step.
    lanes: Vec<Lane>,
}

struct Parameter {
    name: String,
    tensor: Tensor,
    group: usize,
}

/// Parameters of one group, dtype and device that have had gradients in the same steps: they share what is computed
/// once a step.
#[derive(Clone)]
struct Lane {
    group: usize,
    lr: Tensor,
    steps: Tensor,
    one: Tensor,
    sign: Tensor,
    zero: Tensor,
    members: Vec<Member>,
}

#[derive(Clone)]
struct Member {
    /// Its place among the engine's parameters.
    index: usize,
    states: Vec<Tensor>,
}

impl<R: Rule> Engine<R> {
    pub fn new(parameters: Vec<(String, Tensor)>, rule: R, lr: f64, weight_decay: f64) -> Engine<R> {
        let mut engine = Engine {
            rule,
            lr,
            weight_decay,
            clip_norm: None,
            sign: 1.0,
            grad_norm: None,
            parameters: Vec::new(),
            groups: vec![Group::default()],
            base_lr: lr,
            lanes: Vec::new(),
        };
        parameters.into_iter().for_each(|(name, tensor)| engine.place(Some(name), tensor, 0));
        engine
    }

    /// The rate that the optimizer is built with.
    pub fn start_lr(&mut self, lr: f64) {
        (self.lr, self.base_lr) = (lr, lr);
    }

    pub fn lr(&self) -> f64 {
        self.lr
    }

    pub fn add_group(&mut self, parameters: Vec<Tensor>, group: Group) {
        self.groups.push(group);
        let last = self.groups.len() - 1;
        parameters.into_iter().for_each(|tensor| self.place(None, tensor, last));
    }

    /// Puts a parameter into a group; one that was there already moves.
    fn place(&mut self, name: Option<String>, tensor: Tensor, group: usize) {
        match self.parameters.iter_mut().find(|p| same_tensor(&p.tensor, &tensor)) {
            Some(known) => known.group = group,
            None => {
                let name = name.unwrap_or_else(|| self.parameters.len().to_string());
                self.parameters.push(Parameter { name, tensor, group });
            }
        }
    }

    pub fn parameters_where(&self, chooses: impl Fn(&str, &Tensor) -> bool) -> Vec<Tensor> {
        self.parameters.iter().filter(|p| chooses(&p.name, &p.tensor)).map(|p| p.tensor.clone()).collect()
    }

    pub fn step(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        no_grad(|| {
            self.start()?;
            let gradients: Vec<Option<Tensor>> = self.parameters.iter().map(|p| p.tensor.grad()).collect();
            let scale = self.scale(&gradients, scaling.map(|s| &s.inv_scale))?;
            self.split_lanes(&gradients)?;
            for lane in &self.lanes {
                self.step_lane(lane, &gradients, scale.as_ref(), scaling.map(|s| &s.found_inf))?;
            }
            Ok(())
        })
    }

    /// What multiplies the gradients beside the sign: the inverse of a loss scale, and what clipping asks for.
    fn scale(&mut self, gradients: &[Option<Tensor>], inv_scale: Option<&Tensor>) -> Result<Option<Tensor>> {
        let present: Vec<Tensor> = gradients.iter().flatten().map(Tensor::detach).collect();
        let (Some(max_norm), false) = (self.clip_norm, present.is_empty()) else { return Ok(inv_scale.cloned()) };
        let norm = total_norm(&present, 2.0)?;
        let (norm, scale) = match inv_scale {
            None => (norm.clone(), clip_factor(&norm, max_norm)?),
            Some(inv_scale) => {
                let inv_scale = inv_scale.cast(norm.dtype())?;
                let norm = norm.mul(&inv_scale)?;
                (norm.clone(), inv_scale.mul(&clip_factor(&norm, max_norm)?)?)
            }
        };
        self.grad_norm = Some(norm);
        Ok(Some(scale))
    }

    fn step_lane(
        &self,
        lane: &Lane,
        gradients: &[Option<Tensor>],
        scale: Option<&Tensor>,
        found_inf: Option<&Tensor>,
    ) -> Result<()> {
        // Lanes are split so that either all members have a gradient or none.
        if lane.members.iter().all(|m| gradients[m.index].is_none()) {
            return Ok(());
        }
        let dtype = lane.lr.dtype();
        let scale = match scale {
            None => lane.sign.clone(),
            Some(scale) => scale.cast(dtype)?.mul(&lane.sign)?,
        };
        // A step that is left out is not counted.
        let (found_inf, steps_after) = match found_inf {
            None => (lane.zero.clone(), lane.steps.add_scalar(1.0)?),
            Some(found) => (found.cast(dtype)?, lane.steps.add(&found.eq_scalar(0.0)?.cast(dtype)?)?),
        };
        let weight_decay = self.decay_of(lane.group);
        let inputs = self.rule.inputs(&Shared {
            lr: &lane.lr,
            steps_before: &lane.steps,
            steps_after: &steps_after,
            scale: &scale,
            found_inf: &found_inf,
            one: &lane.one,
            weight_decay,
        })?;
        let (row, attributes) = self.rule.row(weight_decay);
        for member in &lane.members {
            let Some(gradient) = &gradients[member.index] else { continue };
            let parameter = &self.parameters[member.index].tensor;
            let targets: Vec<&Tensor> = std::iter::once(parameter).chain(&member.states).collect();
            let inputs: Vec<&Tensor> = std::iter::once(gradient).chain(&inputs).collect();
            update_(row.name(), row, &targets, &inputs, &attributes)?;
        }
        lane.steps.copy_(&steps_after)
    }

    /// Makes lanes before the first step; every parameter then has step count 0.
    fn start(&mut self) -> Result<()> {
        if self.lanes.is_empty() {
            self.lanes = self.new_lanes(&vec![0.0; self.parameters.len()])?;
        }
        Ok(())
    }

    /// Lanes for these step counts, with states of zeros.
    fn new_lanes(&self, steps: &[f64]) -> Result<Vec<Lane>> {
        self.check()?;
        let mut lanes: Vec<(f64, Lane)> = Vec::new();
        for (index, parameter) in self.parameters.iter().enumerate() {
            let (t, steps) = (&parameter.tensor, steps[index]);
            let zeros = |_: &&str| Tensor::zeros(t.shape(), t.dtype().acc(), t.device());
            let member = Member { index, states: self.rule.states().iter().map(zeros).collect::<Result<_>>()? };
            let fits = |(s, lane): &&mut (f64, Lane)| {
                let same = (lane.group, lane.lr.dtype()) == (parameter.group, t.dtype().acc());
                same && *s == steps && lane.lr.device() == t.device()
            };
            match lanes.iter_mut().find(fits) {
                Some((_, lane)) => lane.members.push(member),
                None => lanes.push((steps, self.new_lane(parameter, steps, member)?)),
            }
        }
        Ok(lanes.into_iter().map(|(_, lane)| lane).collect())
    }

    fn new_lane(&self, parameter: &Parameter, steps: f64, member: Member) -> Result<Lane> {
        let scalar = |v: f64| Tensor::full((), v, parameter.tensor.dtype().acc(), parameter.tensor.device());
        Ok(Lane {
            group: parameter.group,
            lr: scalar(self.lr_of(parameter.group))?,
            steps: scalar(steps)?,
            one: scalar(1.0)?,
            sign: scalar(self.sign)?,
            zero: scalar(0.0)?,
            members: vec![member],
        })
    }

    /// Parts the members that have no gradient in this step from those that have.
    fn split_lanes(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        let has = |m: &Member| gradients[m.index].is_some();
        let mut idle = Vec::new();
        for lane in &mut self.lanes {
            if lane.members.iter().all(has) || !lane.members.iter().any(has) {
                continue;
            }
            let (with, without) = std::mem::take(&mut lane.members).into_iter().partition(has);
            idle.push(Lane { members: without, steps: lane.steps.copy()?, ..lane.clone() });
            lane.members = with;
        }
        self.lanes.extend(idle);
        Ok(())
    }

    fn lr_of(&self, group: usize) -> f64 {
        match self.groups[group].lr {
            None => self.lr,
            Some(own) if self.lr == self.base_lr => own,
            Some(own) => own * (self.lr / self.base_lr),
        }
    }

    fn decay_of(&self, group: usize) -> f64 {
        self.groups[group].weight_decay.unwrap_or(self.weight_decay)
    }

    fn check(&self) -> Result<()> {
        self.rule.check()?;
        check_at_least_0(R::NAME, &[("lr", self.lr), ("weight_decay", self.weight_decay)])?;
        for group in &self.groups {
            let own = [("lr", group.lr.unwrap_or(0.0)), ("weight_decay", group.weight_decay.unwrap_or(0.0))];
            check_at_least_0(R::NAME, &own)?;
        }
        if let Some(max_norm) = self.clip_norm {
            check_at_least_0(R::NAME, &[("clip_norm", max_norm)])?;
        }
        match self.parameters.iter().find(|p| !p.tensor.is_leaf()) {
            Some(p) => Err(Error::value(R::NAME, format!("parameter {} is no leaf; it can have no gradient", p.name))),
            None => Ok(()),
        }
    }

    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        check_at_least_0(R::NAME, &[("lr", lr)])?;
        if self.base_lr == 0.0 && lr != 0.0 && self.groups.iter().any(|g| g.lr.is_some()) {
            let message = "the optimizer was built with lr 0, to which the groups' own rates have no ratio";
            return Err(Error::attr(R::NAME, message));
        }
        self.lr = lr;
        self.lanes.iter().try_for_each(|lane| lane.lr.fill_(self.lr_of(lane.group)))
    }

    pub fn state_dict(&self) -> Result<StateDict> {
        if self.lanes.is_empty() {
            let fresh = self.new_lanes(&vec![0.0; self.parameters.len()])?;
            return self.states_of(&fresh);
        }
        self.states_of(&self.lanes)
    }

    fn states_of(&self, lanes: &[Lane]) -> Result<StateDict> {
        let mut state = StateDict::new();
        for lane in lanes {
            for member in &lane.members {
                let name = &self.parameters[member.index].name;
                state.insert(format!("{name}.step"), lane.steps.clone());
                let named = self.rule.states().iter().zip(&member.states);
                state.extend(named.map(|(state, t)| (format!("{name}.{state}"), t.clone())));
            }
        }
        if let Some(first) = self.parameters.first() {
            state.insert("lr".into(), Tensor::full((), self.lr, DType::F64, first.tensor.device())?);
        }
        Ok(state)
    }

    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let own = self.state_dict()?;
        check_state(R::NAME, &own, state)?;
        let steps: Vec<f64> =
            self.parameters.iter().map(|p| state[&format!("{}.step", p.name)].item()).collect::<Result<_>>()?;
        let Some(lr) = state.get("lr") else { return Ok(()) };
        let lr = lr.item()?;
        check_at_least_0(R::NAME, &[("lr", lr)])?;
        // Made apart, so that an error on the way leaves everything as it was.
        let mut lanes = self.new_lanes(&steps)?;
        for lane in &mut lanes {
            for Member { index, states } in &mut lane.members {
                let name = &self.parameters[*index].name;
                for (kind, t) in self.rule.states().iter().zip(states) {
                    t.copy_(&state[&format!("{name}.{kind}")].to_device(t.device())?)?;
                }
            }
        }
        self.lanes = lanes;
        self.set_lr(lr)
    }
}

pub(super) fn check_at_least_0(op: &'static str, options: &[(&str, f64)]) -> Result<()> {
    match options.iter().find(|(_, v)| v.is_nan() || *v < 0.0) {
        Some((name, v)) => Err(Error::attr(op, format!("{name} is {v}, expected at least 0"))),
        None => Ok(()),
    }
}
