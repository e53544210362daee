//! The common part of all optimizers: groups, step counts, states, scaling, saving.

use super::Scaling;
use crate::StateDict;
use crate::module::{check_state, listed_twice, same_tensor};
use crate::number::{Checks, FLAG, Range};
use crate::training::clip::CLIP_NORM;
use isograd_core::ops::Total;
use isograd_core::ops::{Update, total, update_, update_each_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Shape, Tensor, no_autocast, no_grad};
use std::sync::Arc;

/// The update rule of an optimizer, with its options. For each lane, a step first updates the lane's numbers by a pointwise
/// function, then all parameters.
pub(super) trait Rule: Clone + Send + Sync + 'static {
    /// The name in errors.
    const NAME: &'static str;
    /// True if the first step with a state differs from later steps: steps are then counted from the addition of a state.
    const COUNTS_WITH_STATES: bool = false;
    /// False if a step reads several elements of a parameter for one, such as a norm.
    const IS_ELEMENTWISE: bool = true;

    /// Returns an error for a parameter that the rule does not accept.
    fn accept(&self, _parameter: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Checks that the options fit together. Errors: `Attr`. `fields` has the range of each option.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The options by their saved names, with their ranges.
    fn fields(&mut self) -> Vec<Named<'_>>;

    /// The names of a parameter's states.
    fn states(&self) -> &'static [&'static str];

    /// The initial value of the states.
    fn initial(&self) -> f64 {
        0.0
    }

    /// The shape of a state of a parameter.
    fn shape_of(&self, _state: &str, parameter: &Tensor) -> Shape {
        parameter.shape().clone()
    }

    /// The first numbers of [`prepare`](Rule::prepare) that depend on earlier steps, with their initial values. They are saved with each
    /// parameter.
    fn kept(&self) -> &'static [(&'static str, f64)] {
        &[]
    }

    /// The pointwise function that increments the step count and updates the numbers that a lane's parameters share. Its inputs are
    /// `inv_scale`, `norm`, `found_inf` and, if it reads it, the rate. Returned with its attributes after the sign and the largest
    /// norm.
    fn prepare(&self, weight_decay: f64) -> (Pointwise, Vec<f64>);

    /// Updates parameters and states.
    fn update(&self, step: &Step<'_>) -> Result<()>;
}

/// An option, its name and its range.
pub(super) type Named<'a> = (&'static str, &'a mut dyn Field, Range);

/// An option that is saved as a number.
pub(super) trait Field {
    fn get(&self) -> f64;
    fn set(&mut self, value: f64);
}

impl Field for f64 {
    fn get(&self) -> f64 {
        *self
    }

    fn set(&mut self, value: f64) {
        *self = value;
    }
}

impl Field for bool {
    fn get(&self) -> f64 {
        *self as u8 as f64
    }

    fn set(&mut self, value: f64) {
        *self = value != 0.0;
    }
}

impl Field for usize {
    fn get(&self) -> f64 {
        *self as f64
    }

    fn set(&mut self, value: f64) {
        *self = value as usize;
    }
}

/// Options that a group of parameters may set, besides the rate.
#[derive(Clone)]
pub(crate) struct Options<R> {
    pub weight_decay: f64,
    /// Gradient ascent instead of descent.
    pub maximize: bool,
    pub rule: R,
}

impl<R: Rule> Options<R> {
    fn fields(&mut self) -> Vec<Named<'_>> {
        let all: [Named<'_>; 2] =
            [("weight_decay", &mut self.weight_decay, Range::AtLeast0), ("maximize", &mut self.maximize, FLAG)];
        all.into_iter().chain(self.rule.fields()).collect()
    }
}

type Edit<R> = Arc<dyn Fn(&mut Options<R>) + Send + Sync>;

/// The options of a group: its changes to the optimizer's options.
pub(crate) struct Own<R> {
    /// The group's rate, relative to the optimizer's initial rate.
    pub lr: Option<f64>,
    pub edits: Vec<Edit<R>>,
}

impl<R> Default for Own<R> {
    fn default() -> Own<R> {
        Own { lr: None, edits: Vec::new() }
    }
}

impl<R> Clone for Own<R> {
    fn clone(&self) -> Own<R> {
        Own { lr: self.lr, edits: self.edits.clone() }
    }
}

impl<R> Own<R> {
    /// These changes, followed by others.
    fn then(&self, other: &Own<R>) -> Own<R> {
        let edits = self.edits.iter().chain(&other.edits).cloned().collect();
        Own { lr: other.lr.or(self.lr), edits }
    }
}

/// The arguments of a lane's update.
pub(super) struct Step<'a> {
    pub numbers: &'a Numbers,
    pub found_inf: &'a Tensor,
    pub weight_decay: f64,
    /// The bound of elements of unscaled gradients.
    pub limit: f64,
    pub members: Vec<Moved<'a>>,
}

/// A parameter with a gradient.
pub(super) struct Moved<'a> {
    pub parameter: &'a Tensor,
    pub states: &'a [Tensor],
    pub gradient: &'a Tensor,
}

impl Step<'_> {
    /// Runs a pointwise function that updates each parameter and its states. It reads the gradient, and inputs that all parameters
    /// share.
    pub fn each(&self, function: Pointwise, attributes: &[f64], shared: &[&Tensor]) -> Result<()> {
        let updates = self.members.iter().map(|m| Update {
            targets: std::iter::once(m.parameter).chain(m.states).collect(),
            inputs: vec![m.gradient],
            numbers: Vec::new(),
        });
        update_each_(function, &updates.collect::<Vec<_>>(), shared, attributes)
    }

    /// Norms of each member that give a trust ratio of 1.
    pub fn no_norms(&self) -> Vec<Vec<Tensor>> {
        vec![vec![self.numbers.zero.clone(); 2]; self.members.len()]
    }

    /// The lane's prepared numbers, and `found_inf`.
    pub fn prepared(&self) -> Vec<&Tensor> {
        self.numbers.prepared.iter().chain([self.found_inf]).collect()
    }

    /// The rate, followed by [`prepared`](Step::prepared).
    pub fn rated(&self) -> Vec<&Tensor> {
        std::iter::once(&self.numbers.lr).chain(self.prepared()).collect()
    }
}

/// The device scalars of a lane, of one dtype.
#[derive(Clone)]
pub(super) struct Numbers {
    pub lr: Tensor,
    /// The number of steps; during a step it includes this one.
    pub steps: Tensor,
    /// The other numbers that the rule's first function updates, in its order.
    pub prepared: Vec<Tensor>,
    one: Tensor,
    pub zero: Tensor,
}

impl Numbers {
    /// The prepared numbers, for a pattern that names each. Panics unless their number is that of the pattern, which follows the outputs of
    /// the rule's first function.
    pub fn named<const N: usize>(&self) -> [&Tensor; N] {
        let found = self.prepared.len();
        assert_eq!(found, N, "a rule names {N} prepared numbers, and its first function has {found} after the steps");
        std::array::from_fn(|i| &self.prepared[i])
    }
}

/// The saved name of the rate to which the groups' rates are relative.
const INITIAL_LR: &str = "initial_lr";

/// The factors of a step's gradients, on the device where they are given.
struct Scale<'a> {
    scaling: Option<&'a Scaling>,
    /// The norm of the gradients before scaling, if they are clipped by norm.
    norm: Option<Tensor>,
}

/// An optimizer with the update rule `R`.
#[derive(Clone)]
pub(super) struct Engine<R> {
    options: Options<R>,
    lr: f64,
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    pub grad_norm: Option<Tensor>,
    parameters: Vec<Parameter>,
    /// The first group has no options of its own.
    groups: Vec<Own<R>>,
    /// The initial rate of the optimizer, to which the groups' rates are relative.
    base_lr: f64,
    /// Empty before the first step.
    lanes: Vec<Lane>,
    /// True if the lanes have every parameter, in its group, and the groups' rates and states.
    is_current: bool,
    /// The positions of a parameter that was listed twice. This is an error of the first step.
    repeated: Option<[String; 2]>,
}

#[derive(Clone)]
struct Parameter {
    name: String,
    tensor: Tensor,
    group: usize,
}

/// Parameters of the same group, dtype and device that have had gradients in the same steps. They share the numbers that are
/// computed once per step.
#[derive(Clone)]
struct Lane {
    group: usize,
    numbers: Numbers,
    /// The names of the members' states.
    kinds: &'static [&'static str],
    members: Vec<Member>,
}

#[derive(Clone)]
struct Member {
    /// The index among the engine's parameters.
    index: usize,
    states: Vec<Tensor>,
}

impl<R: Rule> Engine<R> {
    pub fn new(parameters: Vec<(String, Tensor)>, rule: R, lr: f64, weight_decay: f64) -> Engine<R> {
        let mut engine = Engine {
            options: Options { weight_decay, maximize: false, rule },
            lr,
            clip_norm: None,
            clip_value: None,
            grad_norm: None,
            parameters: Vec::new(),
            groups: vec![Own::default()],
            base_lr: lr,
            lanes: Vec::new(),
            is_current: false,
            repeated: None,
        };
        for (name, tensor) in parameters {
            match engine.parameters.iter().find(|p| same_tensor(&p.tensor, &tensor)) {
                Some(known) => engine.repeated = Some([known.name.clone(), name]),
                None => engine.parameters.push(Parameter { name, tensor, group: 0 }),
            }
        }
        engine
    }

    /// Sets the rate that the optimizer is built with.
    pub fn start_lr(&mut self, lr: f64) {
        (self.lr, self.base_lr, self.is_current) = (lr, lr, false);
    }

    pub fn lr(&self) -> f64 {
        self.lr
    }

    pub fn is_elementwise(&self) -> bool {
        R::IS_ELEMENTWISE
    }

    /// The options of the parameters without a group, for changes.
    pub fn options_mut(&mut self) -> &mut Options<R> {
        self.is_current = false;
        &mut self.options
    }

    /// Puts parameters into a group. Parameters from different groups get different new groups, because the options of their old
    /// groups stay in effect.
    pub fn add_group(&mut self, parameters: Vec<Tensor>, own: &Own<R>) {
        let first = self.groups.len();
        let mut origins: Vec<usize> = Vec::new();
        for (i, tensor) in parameters.iter().enumerate() {
            let known = self.parameters.iter().find(|p| same_tensor(&p.tensor, tensor));
            let from = known.map_or(0, |p| p.group);
            if from >= first {
                let earlier = parameters.iter().position(|t| same_tensor(t, tensor)).unwrap_or(i);
                self.repeated = Some([earlier.to_string(), i.to_string()]);
                continue;
            }
            let at = origins.iter().position(|&o| o == from).unwrap_or(origins.len());
            if at == origins.len() {
                origins.push(from);
                self.groups.push(self.groups[from].then(own));
            }
            self.place(tensor, first + at);
        }
    }

    fn options_of(&self, group: usize) -> Options<R> {
        let mut options = self.options.clone();
        self.groups[group].edits.iter().for_each(|edit| edit(&mut options));
        options
    }

    /// Puts a parameter into a group. A parameter of another group moves.
    fn place(&mut self, tensor: &Tensor, group: usize) {
        self.is_current = false;
        match self.parameters.iter_mut().find(|p| same_tensor(&p.tensor, tensor)) {
            Some(known) => known.group = group,
            None => {
                let name = self.parameters.len().to_string();
                self.parameters.push(Parameter { name, tensor: tensor.clone(), group });
            }
        }
    }

    pub fn parameters_where(&self, chooses: impl Fn(&str, &Tensor) -> bool) -> Vec<Tensor> {
        self.parameters.iter().filter(|p| chooses(&p.name, &p.tensor)).map(|p| p.tensor.clone()).collect()
    }

    pub fn step(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        // A rule chooses its dtypes itself.
        no_grad(|| no_autocast(|| self.step_plain(scaling)))
    }

    fn step_plain(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        self.start()?;
        let gradients: Vec<Option<Tensor>> = self.parameters.iter().map(|p| p.tensor.grad()).collect();
        let scale = Scale { scaling, norm: self.norm(&gradients, scaling)? };
        self.split_lanes(&gradients)?;
        let step = |lane| self.step_lane(lane, &gradients, &scale).map_err(|e| e.of(R::NAME));
        self.lanes.iter().try_for_each(step)
    }

    /// The total norm of the gradients before scaling, if they are clipped by norm.
    fn norm(&mut self, gradients: &[Option<Tensor>], scaling: Option<&Scaling>) -> Result<Option<Tensor>> {
        let present: Vec<&Tensor> = gradients.iter().flatten().collect();
        if self.clip_norm.is_none() || present.is_empty() {
            return Ok(None);
        }
        let norm = match scaling.and_then(|s| s.norm.clone()) {
            Some(norm) => norm,
            None => total(Total::Norm, &present).map_err(|e| e.of(CLIP_NORM))?,
        };
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
        let (numbers, options) = (&lane.numbers, self.options_of(lane.group));
        let found_inf = scale.scaling.map_or(&numbers.zero, |s| &s.found_inf);
        self.prepare(numbers, &options, scale, found_inf)?;
        let members = lane.members.iter().filter_map(|Member { index, states }| {
            Some(Moved { parameter: &self.parameters[*index].tensor, states, gradient: gradients[*index].as_ref()? })
        });
        options.rule.update(&Step {
            numbers,
            found_inf,
            weight_decay: options.weight_decay,
            limit: self.clip_value.unwrap_or(f64::INFINITY),
            members: members.collect(),
        })
    }

    /// Increments the step count, and computes the numbers of the lane.
    fn prepare(&self, numbers: &Numbers, options: &Options<R>, scale: &Scale<'_>, found_inf: &Tensor) -> Result<()> {
        let Numbers { lr, steps, prepared, one, zero } = numbers;
        let (function, attributes) = options.rule.prepare(options.weight_decay);
        let sign = if options.maximize { -1.0 } else { 1.0 };
        let inv_scale = scale.scaling.map_or(one, |s| &s.inv_scale);
        let targets: Vec<&Tensor> = std::iter::once(steps).chain(prepared).collect();
        let inputs = [inv_scale, scale.norm.as_ref().unwrap_or(zero), found_inf, lr];
        let attributes = [vec![sign, self.clip_norm.unwrap_or(f64::INFINITY)], attributes].concat();
        update_(function, &targets, &inputs[..function.inputs() - function.outputs()], &attributes)
    }

    /// Updates the lanes before a step.
    fn start(&mut self) -> Result<()> {
        if !self.is_current {
            if self.parameters.is_empty() {
                return Err(Error::value(R::NAME, "the optimizer has no parameters"));
            }
            let lanes = self.current_lanes()?;
            // New lanes already have their rates.
            self.fill_lr()?;
            (self.lanes, self.is_current) = (lanes, true);
        }
        Ok(())
    }

    /// The lanes with every parameter in its group. A new parameter starts with step count 0; a parameter from another group keeps
    /// its step count and states. States that options add start here; states that they no longer need are dropped.
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
                        parts.push(Lane { members: vec![member.clone()], ..lane.clone() });
                    }
                    None => {
                        let new = self.new_lane(parameter, lane.numbers.steps.copy()?, member.clone())?;
                        let kept = new.numbers.prepared.iter().zip(&lane.numbers.prepared);
                        let count = self.options.rule.kept().len();
                        kept.take(count).try_for_each(|(to, from)| to.copy_(from))?;
                        parts.push(Lane { kinds: lane.kinds, ..new });
                    }
                }
            }
            parts.iter_mut().try_for_each(|part| self.bring_states(part))?;
            lanes.extend(parts);
        }
        let known: Vec<usize> = lanes.iter().flat_map(|lane| &lane.members).map(|m| m.index).collect();
        let kept: Vec<f64> = self.options.rule.kept().iter().map(|(_, v)| *v).collect();
        let fresh = (0..self.parameters.len()).filter(|i| !known.contains(i)).map(|i| (i, 0.0, kept.clone()));
        lanes.extend(self.new_lanes(fresh)?);
        Ok(lanes)
    }

    /// Gives the members of a lane the states that its group's options need.
    fn bring_states(&self, lane: &mut Lane) -> Result<()> {
        let rule = self.options_of(lane.group).rule;
        let (old, new) = (lane.kinds, rule.states());
        if old == new {
            return Ok(());
        }
        for member in &mut lane.members {
            let tensor = &self.parameters[member.index].tensor;
            let state = |kind: &&str| match old.iter().position(|k| k == kind) {
                Some(i) => Ok(member.states[i].clone()),
                None => start(&rule, kind, tensor),
            };
            member.states = new.iter().map(state).collect::<Result<_>>()?;
        }
        if R::COUNTS_WITH_STATES && new.iter().any(|kind| !old.contains(kind)) {
            lane.numbers.steps = lane.numbers.steps.zeros_like()?;
        }
        lane.kinds = new;
        Ok(())
    }

    /// Lanes for parameters with these step counts and kept numbers, and initial states.
    fn new_lanes(&self, parameters: impl Iterator<Item = (usize, f64, Vec<f64>)>) -> Result<Vec<Lane>> {
        let mut lanes: Vec<(f64, Vec<f64>, Lane)> = Vec::new();
        for (index, steps, kept) in parameters {
            let parameter = &self.parameters[index];
            let (t, rule) = (&parameter.tensor, self.options_of(parameter.group).rule);
            let states = rule.states().iter().map(|kind| start(&rule, kind, t)).collect::<Result<_>>()?;
            let member = Member { index, states };
            let fits = |(s, k, lane): &&mut (f64, Vec<f64>, Lane)| {
                let lr = &lane.numbers.lr;
                let same = (lane.group, lr.dtype()) == (parameter.group, t.dtype().acc());
                same && *s == steps && *k == kept && lr.device() == t.device()
            };
            match lanes.iter_mut().find(fits) {
                Some((.., lane)) => lane.members.push(member),
                None => {
                    let count = Tensor::full((), steps, t.dtype().acc(), t.device())?;
                    let lane = self.new_lane(parameter, count, member)?;
                    lane.numbers.prepared.iter().zip(&kept).try_for_each(|(number, v)| number.fill_(*v))?;
                    lanes.push((steps, kept, lane));
                }
            }
        }
        Ok(lanes.into_iter().map(|(.., lane)| lane).collect())
    }

    fn new_lane(&self, parameter: &Parameter, steps: Tensor, member: Member) -> Result<Lane> {
        let scalar = |v: f64| Tensor::full((), v, parameter.tensor.dtype().acc(), parameter.tensor.device());
        let rule = self.options_of(parameter.group).rule;
        let prepared = rule.prepare(0.0).0.outputs() - 1;
        let numbers = Numbers {
            lr: scalar(self.lr_of(parameter.group))?,
            steps,
            prepared: (0..prepared).map(|_| scalar(0.0)).collect::<Result<_>>()?,
            one: scalar(1.0)?,
            zero: scalar(0.0)?,
        };
        Ok(Lane { group: parameter.group, numbers, kinds: rule.states(), members: vec![member] })
    }

    /// Splits lanes, so that members without a gradient in this step are separate.
    fn split_lanes(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        let has = |m: &Member| gradients[m.index].is_some();
        let mut idle = Vec::new();
        for lane in &mut self.lanes {
            if lane.members.iter().all(has) || !lane.members.iter().any(has) {
                continue;
            }
            let (with, without) = std::mem::take(&mut lane.members).into_iter().partition(has);
            // The rate never differs between the parts of a lane.
            let prepared = lane.numbers.prepared.iter().map(Tensor::copy).collect::<Result<_>>()?;
            let numbers = Numbers { steps: lane.numbers.steps.copy()?, prepared, ..lane.numbers.clone() };
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

    /// Checks for numbers in the narrowest dtype of a step's arithmetic.
    fn checks(&self) -> Checks {
        let is_wide = !self.parameters.is_empty() && self.parameters.iter().all(|p| p.tensor.dtype() == DType::F64);
        Checks { op: R::NAME, dtype: if is_wide { DType::F64 } else { DType::F32 } }
    }

    fn check(&self) -> Result<()> {
        let checks = self.checks();
        self.check_rates()?;
        for group in 0..self.groups.len() {
            let mut options = self.options_of(group);
            options.fields().iter().try_for_each(|(name, field, range)| checks.number(name, field.get(), *range))?;
            options.rule.check()?;
        }
        checks.number("clip_norm", self.clip_norm.unwrap_or(0.0), Range::Bound)?;
        checks.number("clip_value", self.clip_value.unwrap_or(0.0), Range::Bound)?;
        if let Some([first, second]) = &self.repeated {
            return Err(listed_twice(R::NAME, first, second));
        }
        self.parameters.iter().try_for_each(|p| self.options.rule.accept(&p.tensor))?;
        match self.parameters.iter().find(|p| !p.tensor.is_leaf()) {
            Some(p) => Err(Error::value(R::NAME, format!("parameter {} is no leaf; it can have no gradient", p.name))),
            None => Ok(()),
        }
    }

    /// Checks the rates of all groups, both the initial and the current ones.
    fn check_rates(&self) -> Result<()> {
        let checks = self.checks();
        let groups = self.groups.iter().enumerate().flat_map(|(i, group)| [group.lr.unwrap_or(0.0), self.lr_of(i)]);
        let mut rates = [self.lr, self.base_lr].into_iter().chain(groups);
        rates.try_for_each(|lr| checks.number("lr", lr, Range::AtLeast0))
    }

    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        if self.base_lr == 0.0 && lr != 0.0 && self.groups.iter().any(|g| g.lr.is_some()) {
            let message = "the optimizer was built with lr 0, to which the groups' own rates have no ratio";
            return Err(Error::attr(R::NAME, message));
        }
        let before = std::mem::replace(&mut self.lr, lr);
        self.check_rates().inspect_err(|_| self.lr = before)?;
        self.fill_lr()
    }

    fn fill_lr(&self) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.numbers.lr.fill_(self.lr_of(lane.group)))
    }

    pub fn state_dict(&self) -> Result<StateDict> {
        let mut state = self.saved_options()?;
        for lane in &self.current_lanes()? {
            for member in &lane.members {
                let name = &self.parameters[member.index].name;
                state.insert(format!("{name}.step"), lane.numbers.steps.clone());
                let kept = self.options.rule.kept().iter().zip(&lane.numbers.prepared);
                state.extend(kept.map(|((kept, _), t)| (format!("{name}.{kept}"), t.clone())));
                let named = lane.kinds.iter().zip(&member.states);
                state.extend(named.map(|(state, t)| (format!("{name}.{state}"), t.clone())));
            }
        }
        Ok(state)
    }

    /// The groups that have parameters, with the indices of their parameters.
    fn used_groups(&self) -> Vec<(usize, Vec<i64>)> {
        let members = |group| (0..).zip(&self.parameters).filter(move |(_, p)| p.group == group).map(|(i, _)| i);
        let all = (0..self.groups.len()).map(|group| (group, members(group).collect::<Vec<i64>>()));
        all.filter(|(_, members)| !members.is_empty()).collect()
    }

    /// The rate, and the options and parameters of each group.
    pub fn saved_options(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let Some(first) = self.parameters.first() else { return Ok(state) };
        let device = first.tensor.device();
        let number = |v: f64| Tensor::full((), v, DType::F64, device);
        state.insert("lr".into(), number(self.lr)?);
        state.insert(INITIAL_LR.into(), number(self.base_lr)?);
        for (k, (group, members)) in self.used_groups().into_iter().enumerate() {
            let name = |option: &str| format!("group.{k}.{option}");
            let count = members.len();
            state.insert(name("params"), Tensor::from_vec(members, count, device)?);
            state.insert(name(INITIAL_LR), number(self.groups[group].lr.unwrap_or(self.base_lr))?);
            for (option, field, _) in self.options_of(group).fields() {
                state.insert(name(option), number(field.get())?);
            }
        }
        Ok(state)
    }

    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        // The new state is built separately, so that an error leaves the optimizer unchanged.
        let mut next = self.clone();
        let (own, mut state) = (self.saved_options()?, state.clone());
        if own.keys().any(|name| name != "lr" && state.contains_key(name)) {
            check_groups(R::NAME, &own, &state)?;
            next.load_options(&state)?;
        } else {
            own.into_iter().filter(|(name, _)| name != "lr").for_each(|(name, t)| drop(state.insert(name, t)));
        }
        next.is_current = false;
        check_state(R::NAME, &next.state_dict()?, &state)?;
        let number = |p: &Parameter, kind: &str| state[&format!("{}.{kind}", p.name)].item::<f64>();
        let numbers = |(index, p): (usize, &Parameter)| {
            let kept = self.options.rule.kept().iter().map(|(kind, _)| number(p, kind));
            Ok((index, number(p, "step")?, kept.collect::<Result<Vec<f64>>>()?))
        };
        let numbers: Vec<_> = self.parameters.iter().enumerate().map(numbers).collect::<Result<_>>()?;
        let Some(lr) = state.get("lr") else { return Ok(()) };
        next.lanes = next.new_lanes(numbers.into_iter())?;
        for lane in &mut next.lanes {
            for Member { index, states } in &mut lane.members {
                let name = &self.parameters[*index].name;
                for (kind, t) in lane.kinds.iter().zip(states) {
                    t.copy_(&state[&format!("{name}.{kind}")].to_device(t.device())?)?;
                }
            }
        }
        next.is_current = true;
        next.set_lr(lr.item::<f64>()?)?;
        *self = next;
        Ok(())
    }

    /// Loads the options of all groups, as far as the state has them. Loaded options of a group no longer depend on the optimizer's
    /// options.
    fn load_options(&mut self, state: &StateDict) -> Result<()> {
        let checks = self.checks();
        let number = |name: &str| state.get(name).map(Tensor::item::<f64>).transpose();
        self.base_lr = number(INITIAL_LR)?.unwrap_or(self.base_lr);
        for (k, (group, _)) in self.used_groups().into_iter().enumerate() {
            let mut options = self.options_of(group);
            for (option, field, range) in options.fields() {
                if let Some(value) = number(&format!("group.{k}.{option}"))? {
                    checks.number(option, value, range)?;
                    field.set(value);
                }
            }
            // A group whose rate is the optimizer's has no rate of its own.
            let lr = number(&format!("group.{k}.{INITIAL_LR}"))?;
            checks.number(INITIAL_LR, lr.unwrap_or(0.0), Range::AtLeast0)?;
            let lr = lr.filter(|&lr| lr != self.base_lr);
            match group {
                0 => self.options = options,
                _ => self.groups[group] = Own { lr, edits: vec![Arc::new(move |all| *all = options.clone())] },
            }
        }
        Ok(())
    }
}

/// The parameters of each group in a state, as far as it has them.
fn members(state: &StateDict) -> Result<Vec<Vec<i64>>> {
    let params = (0..).map_while(|k| state.get(&format!("group.{k}.params")));
    params.filter(|t| t.dtype() == DType::I64).map(Tensor::to_vec).collect()
}

/// Checks that a state has the groups of an optimizer, whose options `own` has. Errors: `Value`.
fn check_groups(op: &'static str, own: &StateDict, state: &StateDict) -> Result<()> {
    let (own, saved) = (members(own)?, members(state)?);
    if own == saved || saved.is_empty() {
        return Ok(());
    }
    let sizes = |groups: &[Vec<i64>]| groups.iter().map(Vec::len).collect::<Vec<_>>();
    let said = |sizes: &[usize]| match sizes {
        [one] => format!("1 group, of {one} parameters"),
        sizes => {
            let each: Vec<String> = sizes.iter().map(usize::to_string).collect();
            format!("{} groups, of {} parameters", each.len(), each.join(" and "))
        }
    };
    let (own, saved) = (sizes(&own), sizes(&saved));
    let message = match own == saved {
        true => format!("the state has {}, and so has the optimizer, but other parameters are in them", said(&saved)),
        false => format!("the state has {}, the optimizer has {}", said(&saved), said(&own)),
    };
    Err(Error::value(op, format!("{message}; build it with the parameters and groups of the saved run")))
}

/// An initial state of a parameter. One of the parameter's shape gets its order in memory, so that one launch updates them all.
fn start(rule: &impl Rule, state: &str, t: &Tensor) -> Result<Tensor> {
    let shape = rule.shape_of(state, t);
    let has_order = shape == *t.shape() && t.is_channels_last();
    let state = Tensor::full(shape, rule.initial(), t.dtype().acc(), t.device())?;
    if has_order { state.to_channels_last() } else { Ok(state) }
}
