//! What all optimizers do around their rule: groups, step counts, states, scaling, saving.

use super::{Group, Scaling};
use crate::StateDict;
use crate::clip::CLIP_NORM;
use crate::module::{check_state, same_tensor};
use isograd_core::backend::Total;
use isograd_core::ops::{Update, total, update_, update_each_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Tensor, no_autocast, no_grad};

/// The update rule of one kind of optimizer. For each lane a step runs a row on numbers, and then the update of all
/// parameters.
pub(super) trait Rule {
    /// For errors.
    const NAME: &'static str;
    /// Whether the rule compares norms of parameters and of what these step by.
    const HAS_TRUST_RATIO: bool = false;

    /// Errors if the rule does not take such a parameter.
    fn accept(&self, _parameter: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Errors with `Attr` if an option is out of its range.
    fn check(&self) -> Result<()>;

    /// The names of the states that a parameter has.
    fn states(&self) -> &'static [&'static str];

    /// What the states start with.
    fn initial(&self) -> f64 {
        0.0
    }

    /// The row that counts the step and updates what is computed once for all parameters of a lane, from `inv_scale`,
    /// `norm`, `found_inf` and, if the row reads it, the rate; with its attributes after the sign and the largest norm.
    fn prepare(&self, weight_decay: f64) -> (Pointwise, Vec<f64>);

    /// Updates parameters and states.
    fn update(&self, step: &Step<'_>) -> Result<()>;
}

/// What the parameters of a lane step by.
pub(super) struct Step<'a> {
    pub numbers: &'a Numbers,
    pub found_inf: &'a Tensor,
    pub weight_decay: f64,
    /// Whether the group leaves the trust ratio out.
    pub skips_trust_ratio: bool,
    pub members: Vec<Moved<'a>>,
}

/// A parameter that has a gradient.
pub(super) struct Moved<'a> {
    pub parameter: &'a Tensor,
    pub states: &'a [Tensor],
    pub gradient: &'a Tensor,
}

impl Step<'_> {
    /// A row that updates each parameter and its states from its gradient, and from what all share.
    pub fn each(&self, row: Pointwise, attributes: &[f64], shared: &[&Tensor]) -> Result<()> {
        let updates = self.members.iter().map(|m| Update {
            targets: std::iter::once(m.parameter).chain(m.states).collect(),
            inputs: vec![m.gradient],
            numbers: Vec::new(),
        });
        update_each_(row.name(), row, &updates.collect::<Vec<_>>(), shared, attributes)
    }

    /// The two norms of each member as `find` computes them, or zeros where the trust ratio is left out: it is 1 then.
    pub fn norms(&self, find: impl FnOnce() -> Result<Vec<Vec<Tensor>>>) -> Result<Vec<Vec<Tensor>>> {
        match self.skips_trust_ratio {
            true => Ok(vec![vec![self.numbers.zero.clone(); 2]; self.members.len()]),
            false => find(),
        }
    }

    /// What was prepared, and whether anything happens.
    pub fn prepared(&self) -> Vec<&Tensor> {
        self.numbers.prepared.iter().chain([self.found_inf]).collect()
    }

    /// The rate, and the above.
    pub fn rated(&self) -> Vec<&Tensor> {
        std::iter::once(&self.numbers.lr).chain(self.prepared()).collect()
    }
}

/// The device scalars of a lane, of one dtype.
#[derive(Clone)]
pub(super) struct Numbers {
    pub lr: Tensor,
    /// The number of steps, while one runs with this one.
    pub steps: Tensor,
    /// What the rule's first row updates beside the steps, in its order.
    pub prepared: Vec<Tensor>,
    one: Tensor,
    pub zero: Tensor,
}

/// What a step multiplies the gradients by, on the device where it is given.
struct Scale<'a> {
    scaling: Option<&'a Scaling>,
    /// The norm of the gradients as they are, if they are clipped.
    norm: Option<Tensor>,
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
    /// Whether the lanes have every parameter, in its group, and the groups' rates.
    is_current: bool,
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
    numbers: Numbers,
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
            is_current: false,
        };
        parameters.into_iter().for_each(|(name, tensor)| engine.place(Some(name), tensor, 0));
        engine
    }

    /// The rate that the optimizer is built with.
    pub fn start_lr(&mut self, lr: f64) {
        (self.lr, self.base_lr, self.is_current) = (lr, lr, false);
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
        self.is_current = false;
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
        // Rules say themselves what they compute in which dtype.
        no_grad(|| no_autocast(|| self.step_plain(scaling)))
    }

    fn step_plain(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        self.start()?;
        let gradients: Vec<Option<Tensor>> = self.parameters.iter().map(|p| p.tensor.grad()).collect();
        let scale = Scale { scaling, norm: self.norm(&gradients, scaling)? };
        self.split_lanes(&gradients)?;
        self.lanes.iter().try_for_each(|lane| self.step_lane(lane, &gradients, &scale))
    }

    /// The total norm of the gradients as they are, if they are clipped.
    fn norm(&mut self, gradients: &[Option<Tensor>], scaling: Option<&Scaling>) -> Result<Option<Tensor>> {
        let present: Vec<&Tensor> = gradients.iter().flatten().collect();
        if self.clip_norm.is_none() || present.is_empty() {
            return Ok(None);
        }
        let norm = total(CLIP_NORM, Total::Norm, &present)?;
        self.grad_norm = Some(match scaling {
            None => norm.clone(),
            Some(s) => norm.mul(&s.inv_scale.cast(norm.dtype())?)?,
        });
        Ok(Some(norm))
    }

    fn step_lane(&self, lane: &Lane, gradients: &[Option<Tensor>], scale: &Scale<'_>) -> Result<()> {
        // Lanes are split so that either all members have a gradient or none.
        if lane.members.iter().all(|m| gradients[m.index].is_none()) {
            return Ok(());
        }
        let numbers = &lane.numbers;
        let found_inf = scale.scaling.map_or(&numbers.zero, |s| &s.found_inf);
        self.prepare(lane, scale, found_inf)?;
        let members = lane.members.iter().filter_map(|Member { index, states }| {
            Some(Moved { parameter: &self.parameters[*index].tensor, states, gradient: gradients[*index].as_ref()? })
        });
        self.rule.update(&Step {
            numbers,
            found_inf,
            weight_decay: self.decay_of(lane.group),
            skips_trust_ratio: self.groups[lane.group].skips_trust_ratio,
            members: members.collect(),
        })
    }

    /// Counts the step, and computes what it needs once.
    fn prepare(&self, lane: &Lane, scale: &Scale<'_>, found_inf: &Tensor) -> Result<()> {
        let Numbers { lr, steps, prepared, one, zero } = &lane.numbers;
        let (row, attributes) = self.rule.prepare(self.decay_of(lane.group));
        let inv_scale = scale.scaling.map_or(one, |s| &s.inv_scale);
        let targets: Vec<&Tensor> = std::iter::once(steps).chain(prepared).collect();
        let inputs = [inv_scale, scale.norm.as_ref().unwrap_or(zero), found_inf, lr];
        let attributes = [vec![self.sign, self.clip_norm.unwrap_or(f64::INFINITY)], attributes].concat();
        update_(row.name(), row, &targets, &inputs[..row.inputs() - row.outputs()], &attributes)
    }

    /// Brings the lanes up to date before a step.
    fn start(&mut self) -> Result<()> {
        if !self.is_current {
            let lanes = self.current_lanes()?;
            // New ones have their rates.
            self.fill_lr()?;
            (self.lanes, self.is_current) = (lanes, true);
        }
        Ok(())
    }

    /// The lanes with every parameter in its group: one that has none yet starts with step count 0, one that was in another
    /// group keeps its step count and states.
    fn current_lanes(&self) -> Result<Vec<Lane>> {
        if self.is_current {
            return Ok(self.lanes.clone());
        }
        self.check()?;
        let mut lanes = Vec::new();
        for lane in &self.lanes {
            let mut parts: Vec<Lane> = Vec::new();
            for member in &lane.members {
                let parameter = &self.parameters[member.index];
                match parts.iter_mut().find(|part| part.group == parameter.group) {
                    Some(part) => part.members.push(member.clone()),
                    None if parameter.group == lane.group => {
                        parts.push(Lane { members: vec![member.clone()], numbers: lane.numbers.clone(), ..*lane });
                    }
                    None => parts.push(self.new_lane(parameter, lane.numbers.steps.copy()?, member.clone())?),
                }
            }
            lanes.extend(parts);
        }
        let known: Vec<usize> = lanes.iter().flat_map(|lane| &lane.members).map(|m| m.index).collect();
        let fresh = (0..self.parameters.len()).filter(|i| !known.contains(i)).map(|i| (i, 0.0));
        lanes.extend(self.new_lanes(fresh)?);
        Ok(lanes)
    }

    /// Lanes for parameters with these step counts, and with states as they start.
    fn new_lanes(&self, parameters: impl Iterator<Item = (usize, f64)>) -> Result<Vec<Lane>> {
        let mut lanes: Vec<(f64, Lane)> = Vec::new();
        for (index, steps) in parameters {
            let parameter = &self.parameters[index];
            let t = &parameter.tensor;
            let start = |_: &&str| Tensor::full(t.shape(), self.rule.initial(), t.dtype().acc(), t.device());
            let member = Member { index, states: self.rule.states().iter().map(start).collect::<Result<_>>()? };
            let fits = |(s, lane): &&mut (f64, Lane)| {
                let lr = &lane.numbers.lr;
                let same = (lane.group, lr.dtype()) == (parameter.group, t.dtype().acc());
                same && *s == steps && lr.device() == t.device()
            };
            match lanes.iter_mut().find(fits) {
                Some((_, lane)) => lane.members.push(member),
                None => {
                    let count = Tensor::full((), steps, t.dtype().acc(), t.device())?;
                    lanes.push((steps, self.new_lane(parameter, count, member)?));
                }
            }
        }
        Ok(lanes.into_iter().map(|(_, lane)| lane).collect())
    }

    fn new_lane(&self, parameter: &Parameter, steps: Tensor, member: Member) -> Result<Lane> {
        let scalar = |v: f64| Tensor::full((), v, parameter.tensor.dtype().acc(), parameter.tensor.device());
        let prepared = self.rule.prepare(0.0).0.outputs() - 1;
        let numbers = Numbers {
            lr: scalar(self.lr_of(parameter.group))?,
            steps,
            prepared: (0..prepared).map(|_| scalar(0.0)).collect::<Result<_>>()?,
            one: scalar(1.0)?,
            zero: scalar(0.0)?,
        };
        Ok(Lane { group: parameter.group, numbers, members: vec![member] })
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
            // The other numbers never differ while a lane steps.
            let numbers = Numbers { steps: lane.numbers.steps.copy()?, ..lane.numbers.clone() };
            idle.push(Lane { members: without, numbers, ..*lane });
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
            if group.skips_trust_ratio && !R::HAS_TRUST_RATIO {
                return Err(Error::attr(
                    R::NAME,
                    "a group leaves out the trust ratio, which this optimizer does not have",
                ));
            }
        }
        if let Some(max_norm) = self.clip_norm {
            check_at_least_0(R::NAME, &[("clip_norm", max_norm)])?;
        }
        self.parameters.iter().try_for_each(|p| self.rule.accept(&p.tensor))?;
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
        self.fill_lr()
    }

    fn fill_lr(&self) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.numbers.lr.fill_(self.lr_of(lane.group)))
    }

    pub fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for lane in &self.current_lanes()? {
            for member in &lane.members {
                let name = &self.parameters[member.index].name;
                state.insert(format!("{name}.step"), lane.numbers.steps.clone());
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
        let mut lanes = self.new_lanes(steps.into_iter().enumerate())?;
        for lane in &mut lanes {
            for Member { index, states } in &mut lane.members {
                let name = &self.parameters[*index].name;
                for (kind, t) in self.rule.states().iter().zip(states) {
                    t.copy_(&state[&format!("{name}.{kind}")].to_device(t.device())?)?;
                }
            }
        }
        (self.lanes, self.is_current) = (lanes, true);
        self.set_lr(lr)
    }
}

pub(super) fn check_at_least_0(op: &'static str, options: &[(&str, f64)]) -> Result<()> {
    match options.iter().find(|(_, v)| v.is_nan() || *v < 0.0) {
        Some((name, v)) => Err(Error::attr(op, format!("{name} is {v}, expected at least 0"))),
        None => Ok(()),
    }
}

pub(super) fn check_rate(op: &'static str, name: &str, rate: f64) -> Result<()> {
    match (0.0..1.0).contains(&rate) {
        true => Ok(()),
        false => Err(Error::attr(op, format!("{name} is {rate}, expected 0 to below 1"))),
    }
}
