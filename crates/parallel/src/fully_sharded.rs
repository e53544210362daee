//! Models whose parameters, gradients and optimizer states are distributed over the ranks: Rajbhandari et al. 2020, "ZeRO: memory
//! optimizations toward training trillion parameter models", arXiv:1910.02054, stage 3.
//!
//! The parameters of a unit, such as a block, are one flat tensor, of which each rank keeps a part. A parameter of the model is a page: the
//! first kernel that reads it makes the ranks gather its unit, and a later unit takes its place. The tape saves the page, so that a backward
//! pass gathers again.

use crate::data_parallel::{Unused, check_models};
use crate::sharded::NamedParameters;
use crate::states::{Groups, decode, encode, parameter_of};
use crate::worker::{Started, Worker};
use crate::{Group, Reduction};
use isograd_core::collective::Collective;
use isograd_core::ops::{Total, total};
use isograd_core::page::{Access, Pager};
use isograd_core::tape::Hook;
use isograd_core::{DType, Device, Error, Result, Tensor, no_autocast, no_grad};
use isograd_nn::optim::Scaling;
use isograd_nn::{Init, Keeper, Metadata, Module, Optimizer, StateDict, grad_norm};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

const OP: &str = "fully_sharded";
/// Elements to whose multiples parameters and parts are aligned, so that kernels read whole words.
const ALIGNMENT: usize = 16;
/// Reductions of gradients that may be unfinished at a time.
const UNFINISHED: usize = 2;

/// The options of [`FullySharded`].
#[derive(Clone, Copy, Debug)]
pub struct ShardOptions {
    /// The unit of a parameter, by the parameter's name.
    pub unit: fn(&str) -> &str,
    /// The dtype in which parameters are gathered and used, such as bf16; that of their initial values if it is `None`. Parts, states of the
    /// optimizer and the gradients that it gets have the dtype of the initial values.
    pub compute: Option<DType>,
    /// The dtype in which gradients are reduced; that of the parameters in use if it is `None`.
    pub reduce: Option<DType>,
    /// What happens to a parameter without a gradient. With `Unused::Zero`, its gradient is 0.
    pub unused: Unused,
    /// Units that are in memory at a time, at least one, besides the next, which is gathered ahead.
    pub resident: usize,
}

impl Default for ShardOptions {
    /// Units by [`unit_of`]; the dtype of the initial values; a parameter without a gradient is an error; one unit in memory, and the next.
    fn default() -> ShardOptions {
        ShardOptions { unit: unit_of, compute: None, reduce: None, unused: Unused::Error, resident: 1 }
    }
}

/// A name up to its first number: `h.3` of `h.3.mlp.weight`, so that each block is a unit. A name without a number is that of the module:
/// `head` of `head.weight`.
pub fn unit_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len() + usize::from(end > 0);
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
    }
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// A model's parameters in parts: each rank keeps a part of each unit, and of its gradients and the states of its optimizer. A unit's
/// parameters are gathered when a kernel uses them, in forward and backward passes, and freed when another unit takes their place. Its
/// gradients are reduced as soon as a pass has all of them, and each rank keeps the mean of its part.
///
/// Every rank runs the same ops on these parameters in the same order, since each may wait for the others: a value that one rank alone reads
/// is an error of that rank.
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{AdamW, Forward, Init, Linear, Optimizer, Sequential};
/// # use isograd_parallel::{FullySharded, Group, ShardOptions, threads};
/// fn train(group: &Group, x: &Tensor, y: &Tensor) -> Result<()> {
///     let make = |init: &Init| Ok(Sequential::new().push(Linear::new(4, 8, init)?).push(Linear::new(8, 1, init)?));
///     let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &Init::new(x.device()), make)?;
///     let mut optimizer = sharded.optimizer(|parts| AdamW::new(parts).clip_norm(1.0))?;
///     for _ in 0..10 {
///         model.forward(x)?.sub(y)?.square()?.mean(..)?.backward()?;
///         sharded.synchronize()?;
///         optimizer.step()?;
///     }
///     Ok(())
/// }
/// # threads(2, |group| {
/// #     let x = Tensor::ones((2, 4), DType::F32, &Device::cpu()?)?;
/// #     train(&group, &x, &x.narrow(1, 0, 1)?)
/// # }).map(drop)
/// # .unwrap();
/// ```
pub struct FullySharded {
    state: Arc<State>,
    hooks: Vec<Hook>,
    /// The parts of parameters that this rank keeps: leaves that share the memory of the units' parts.
    parts: Vec<Piece>,
    buffers: Vec<(String, Tensor)>,
}

/// A rank's part of a parameter.
#[derive(Clone)]
struct Piece {
    parameter: usize,
    tensor: Tensor,
    /// Its first element within the parameter, and within the rank's part of the unit.
    start: usize,
    at: usize,
}

struct State {
    group: Group,
    options: ShardOptions,
    worker: Worker,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    parameters: Vec<Parameter>,
    units: Vec<Unit>,
    /// Units in memory, the one that was used last at the end.
    resident: Vec<usize>,
    /// The units of this step and of the last, in the order of their uses.
    order: Vec<usize>,
    last_order: Vec<usize>,
    /// The next of `last_order`; beyond its end if this step has another order.
    position: usize,
    /// Parameters whose leaves may have a gradient, which their unit has taken.
    taken: Vec<usize>,
    reducing: VecDeque<(usize, Started)>,
}

struct Parameter {
    name: String,
    /// A page. Of the leaf in the model, once it is known.
    tensor: Tensor,
    unit: usize,
    /// Its first element in the unit.
    at: usize,
    has_arrived: bool,
}

struct Unit {
    members: Vec<usize>,
    /// The part of the parameters that this rank has.
    part: Tensor,
    /// All parts, while they are in memory.
    full: Option<Tensor>,
    /// All parts, which are being gathered.
    coming: Option<Started>,
    /// `full` has changed.
    is_changed: bool,
    /// The gradients that have come in this pass.
    gradients: Option<Tensor>,
    /// The pass has had all gradients.
    is_reduced: bool,
    /// The mean over the ranks of the gradients of this rank's part, or the sum of those of several passes.
    mean: Option<Tensor>,
}

impl Unit {
    fn new(members: Vec<usize>, part: Tensor) -> Unit {
        let (full, coming, gradients, mean) = (None, None, None, None);
        Unit { members, part, full, coming, is_changed: false, gradients, is_reduced: false, mean }
    }
}

/// Keeps parameters in parts from the moment when they have their values.
struct ShardKeeper(Arc<State>);

impl fmt::Debug for ShardKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardKeeper")
    }
}

impl Keeper for ShardKeeper {
    fn keep(&self, values: Tensor) -> Result<Tensor> {
        no_grad(|| no_autocast(|| self.0.keep(&values)))
    }
}

impl Pager for State {
    fn elements(&self, pages: &[(usize, Access)]) -> Result<Vec<Tensor>> {
        let mut inner = self.inner.lock();
        let units: Vec<usize> = pages.iter().map(|(number, _)| inner.parameters[*number].unit).collect();
        self.enter(&mut inner, &units)?;
        let element = |&(number, access): &(usize, Access)| {
            let Parameter { unit, at, tensor, .. } = &inner.parameters[number];
            let (unit, at, count) = (*unit, *at, tensor.numel());
            let unit = &mut inner.units[unit];
            unit.is_changed |= access == Access::Write;
            let full = unit.full.as_ref().ok_or_else(|| Error::value(OP, "a unit in use is not in memory"))?;
            full.narrow(0, at, count)
        };
        pages.iter().map(element).collect()
    }
}

impl State {
    /// Takes the values of rank 0 as a unit of its own.
    fn keep(self: &Arc<Self>, values: &Tensor) -> Result<Tensor> {
        let values = values.detach();
        let flat = self.group.run(Collective::Broadcast(0), &values.in_memory_order()?)?;
        let count = flat.numel();
        let length = part_length(count, self.group.size());
        let part = Tensor::zeros(length, flat.dtype(), flat.device())?;
        copy_common(&flat, 0, &part, self.group.rank() * length)?;
        let mut inner = self.inner.lock();
        let number = inner.parameters.len();
        let own: Arc<dyn Pager> = self.clone();
        let tensor = values.paged(self.options.compute.unwrap_or(values.dtype()), Arc::downgrade(&own), number)?;
        let unit = inner.units.len();
        inner.units.push(Unit::new(vec![number], part));
        inner.parameters.push(Parameter {
            name: String::new(),
            tensor: tensor.clone(),
            unit,
            at: 0,
            has_arrived: false,
        });
        Ok(tensor)
    }

    /// Brings these units into memory.
    fn enter(&self, inner: &mut Inner, needed: &[usize]) -> Result<()> {
        for &unit in needed {
            if inner.resident.last() == Some(&unit) {
                continue;
            }
            inner.resident.retain(|known| *known != unit);
            if inner.units[unit].full.is_none() {
                while inner.resident.len() >= self.options.resident.max(1) {
                    // Units that the same kernel uses stay.
                    let Some(oldest) = inner.resident.iter().position(|known| !needed.contains(known)) else { break };
                    let oldest = inner.resident.remove(oldest);
                    self.leave(&mut inner.units[oldest])?;
                }
                let started = match inner.units[unit].coming.take() {
                    Some(started) => started,
                    None => self.gather(inner, unit)?,
                };
                let full = self.worker.wait(started)?;
                inner.units[unit].full = Some(full.reshape(full.numel())?);
            }
            inner.resident.push(unit);
            self.gather_next(inner, unit)?;
        }
        Ok(())
    }

    /// Starts to gather a unit.
    fn gather(&self, inner: &Inner, unit: usize) -> Result<Started> {
        let Unit { part, members, .. } = &inner.units[unit];
        let dtype = members.first().map_or(part.dtype(), |member| inner.parameters[*member].tensor.dtype());
        self.worker.start(Collective::AllGather, part.cast(dtype)?)
    }

    /// Starts to gather the unit that came after this one in the last step.
    fn gather_next(&self, inner: &mut Inner, unit: usize) -> Result<()> {
        inner.order.push(unit);
        if inner.last_order.get(inner.position) != Some(&unit) {
            inner.position = usize::MAX;
            return Ok(());
        }
        inner.position += 1;
        if let Some(&next) = inner.last_order.get(inner.position)
            && inner.units[next].full.is_none()
            && inner.units[next].coming.is_none()
        {
            inner.units[next].coming = Some(self.gather(inner, next)?);
        }
        Ok(())
    }

    /// Frees a unit's memory. Changed parameters go back to the part.
    fn leave(&self, unit: &mut Unit) -> Result<()> {
        if let Some(full) = unit.full.take()
            && std::mem::take(&mut unit.is_changed)
        {
            let own = full.narrow(0, self.group.rank() * unit.part.numel(), unit.part.numel())?;
            unit.part.copy_(&own.cast(unit.part.dtype())?)?;
        }
        Ok(())
    }

    /// Frees the memory of all units.
    fn leave_all(&self, inner: &mut Inner) -> Result<()> {
        for unit in &mut inner.units {
            self.leave(unit)?;
            if let Some(coming) = unit.coming.take() {
                self.worker.wait(coming)?;
            }
        }
        inner.resident.clear();
        Ok(())
    }

    /// Takes a gradient into its unit, and starts to reduce a unit that has all of them.
    fn arrived(&self, number: usize, dy: &Tensor) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.free_taken()?;
        let Parameter { name, tensor, unit, at, has_arrived } = &mut inner.parameters[number];
        let (unit, at, leaf) = (*unit, *at, tensor.clone());
        if std::mem::replace(has_arrived, true) {
            let message = format!("{name} has a second gradient before the other parameters of its unit have one");
            return Err(Error::value(OP, format!("{message}; call `synchronize` after each pass")));
        }
        let length = inner.units[unit].part.numel() * self.group.size();
        let gradients = match &inner.units[unit].gradients {
            Some(gradients) => gradients.clone(),
            None => Tensor::zeros(length, leaf.dtype(), leaf.device())?,
        };
        gradients.narrow(0, at, leaf.numel())?.in_order_of(&leaf)?.copy_(&dy.detach())?;
        inner.units[unit].gradients = Some(gradients);
        inner.taken.push(number);
        if inner.missing(unit).is_empty() { self.reduce(&mut inner, unit) } else { Ok(()) }
    }

    /// Starts to reduce the gradients of a unit.
    fn reduce(&self, inner: &mut Inner, unit: usize) -> Result<()> {
        let parameters = &inner.units[unit].members.clone();
        parameters.iter().for_each(|member| inner.parameters[*member].has_arrived = false);
        let first = &inner.parameters[parameters[0]].tensor;
        let (dtype, device) = (first.dtype(), first.device().clone());
        let own = &mut inner.units[unit];
        let length = own.part.numel();
        own.is_reduced = true;
        let gradients = match own.gradients.take() {
            Some(gradients) => gradients,
            None => Tensor::zeros(length * self.group.size(), dtype, &device)?,
        };
        let gradients = gradients.cast(self.options.reduce.unwrap_or(dtype))?.reshape((self.group.size(), length))?;
        let started = self.worker.start(Collective::ReduceScatter(Reduction::Mean), gradients)?;
        inner.reducing.push_back((unit, started));
        if inner.reducing.len() > UNFINISHED { self.finish_oldest(inner) } else { Ok(()) }
    }

    /// Ends the oldest unfinished reduction.
    fn finish_oldest(&self, inner: &mut Inner) -> Result<()> {
        let Some((unit, started)) = inner.reducing.pop_front() else { return Ok(()) };
        let unit = &mut inner.units[unit];
        let mean = self.worker.wait(started)?.cast(unit.part.dtype())?;
        unit.mean = Some(match unit.mean.take() {
            Some(sum) => sum.add(&mean)?,
            None => mean,
        });
        Ok(())
    }

    /// Ends the reductions of a step.
    fn finish(&self, inner: &mut Inner) -> Result<()> {
        inner.free_taken()?;
        let left: Vec<usize> = (0..inner.units.len()).filter(|unit| !inner.units[*unit].is_reduced).collect();
        let missing: Vec<usize> = left.iter().flat_map(|unit| inner.missing(*unit)).collect();
        if self.options.unused == Unused::Error && !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(|i| inner.parameters[*i].name.as_str()).collect();
            let message = format!("no gradient on rank {} in this pass: {}", self.group.rank(), names.join(", "));
            return Err(Error::value(OP, format!("{message}; with `Unused::Zero`, gradients are 0 there")));
        }
        for unit in left {
            // A unit without trained parameters has no gradients.
            if !inner.missing(unit).is_empty() {
                self.reduce(inner, unit)?;
            }
        }
        while !inner.reducing.is_empty() {
            self.finish_oldest(inner)?;
        }
        Ok(())
    }

    /// All elements of a unit, from the parts, in their dtype.
    fn whole(&self, part: &Tensor) -> Result<Tensor> {
        let full = self.worker.wait(self.worker.start(Collective::AllGather, part.clone())?)?;
        full.reshape(full.numel())
    }
}

impl Inner {
    /// Clears the gradients of leaves that their units have taken.
    fn free_taken(&mut self) -> Result<()> {
        self.taken.drain(..).try_for_each(|number| self.parameters[number].tensor.set_grad(None))
    }

    /// The trained parameters of a unit that have had no gradient.
    fn missing(&self, unit: usize) -> Vec<usize> {
        let is_missing = |member: &usize| {
            let Parameter { tensor, has_arrived, .. } = &self.parameters[*member];
            !has_arrived && tensor.requires_grad()
        };
        self.units[unit].members.iter().copied().filter(is_missing).collect()
    }
}

/// The elements of each rank's part of a unit.
fn part_length(count: usize, ranks: usize) -> usize {
    count.div_ceil(ranks).next_multiple_of(ALIGNMENT)
}

/// Copies the elements that two tensors `[n]` have in common, of which each has the place of its first element in a unit.
fn copy_common(from: &Tensor, from_start: usize, to: &Tensor, to_start: usize) -> Result<()> {
    let start = from_start.max(to_start);
    let end = (from_start + from.numel()).min(to_start + to.numel());
    if start >= end {
        return Ok(());
    }
    let source = from.narrow(0, start - from_start, end - start)?;
    to.narrow(0, start - to_start, end - start)?.copy_(&source)
}

impl FullySharded {
    /// A model that `make` builds with the given `init`, whose parameters are distributed from their beginning: no rank ever has more of them
    /// than one parameter and its parts. Every rank gets the values and the buffers of rank 0.
    ///
    /// Errors: `Value` if the ranks' models differ, if a parameter was not made by the given `init`, and if a rank would have no part of any
    /// parameter.
    pub fn build<M: Module>(
        group: &Group,
        options: &ShardOptions,
        init: &Init,
        make: impl FnOnce(&Init) -> Result<M>,
    ) -> Result<(M, FullySharded)> {
        let (worker, inner) = (Worker::new(group.duplicate()?)?, Mutex::default());
        let state = Arc::new(State { group: group.clone(), options: *options, worker, inner });
        let model = make(&init.clone().kept_by(ShardKeeper(state.clone())))?;
        let (parameters, buffers) = (model.named_parameters(), model.named_buffers());
        check_models(group, parameters.iter().chain(&buffers))?;
        let parts = no_grad(|| {
            state.name(&parameters)?;
            state.join_units()?;
            buffers.iter().try_for_each(|(_, t)| t.copy_(&group.run(Collective::Broadcast(0), t)?))?;
            state.pieces()
        })?;
        let mut sharded = FullySharded { state, hooks: Vec::new(), parts, buffers };
        sharded.add_hooks()?;
        Ok((model, sharded))
    }

    fn add_hooks(&mut self) -> Result<()> {
        let leaves: Vec<Tensor> = self.state.inner.lock().parameters.iter().map(|p| p.tensor.clone()).collect();
        for (number, leaf) in leaves.into_iter().enumerate() {
            let state = Arc::downgrade(&self.state);
            let arrived = move |dy: &Tensor| match state.upgrade() {
                Some(state) => state.arrived(number, dy).map(|()| None),
                None => Ok(None),
            };
            self.hooks.push(leaf.register_hook(arrived)?);
        }
        Ok(())
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.state.group
    }

    /// Ends a step's reductions: each rank then has the mean over the ranks of the gradients of its parts, and the optimizer can step. Called
    /// after every backward pass. Means of several passes before a step add up. Errors: `Value` naming the parameters without a gradient,
    /// according to the options; else as the group's.
    pub fn synchronize(&self) -> Result<()> {
        let mut inner = self.state.inner.lock();
        let result = no_grad(|| self.state.finish(&mut inner));
        for unit in &mut inner.units {
            unit.is_reduced = false;
        }
        if result.is_err() {
            inner.parameters.iter_mut().for_each(|p| p.has_arrived = false);
            inner.units.iter_mut().for_each(|unit| unit.gradients = None);
            return result;
        }
        for Piece { parameter, tensor, at, .. } in &self.parts {
            let Parameter { unit, tensor: leaf, .. } = &inner.parameters[*parameter];
            // A frozen parameter has none.
            if let Some(mean) = inner.units[*unit].mean.as_ref().filter(|_| leaf.requires_grad()) {
                tensor.set_grad(Some(mean.narrow(0, *at, tensor.numel())?))?;
            }
        }
        Ok(())
    }

    /// The optimizer of the parts. `make` makes it for parts `[n]`, which have the names of their parameters; it is called for the whole
    /// parameters too, whose optimizer only says which groups of parameters there are. Errors: `Unsupported` for an optimizer that needs
    /// whole parameters, such as those that take their norms; `Value` if the groups depend on shapes.
    pub fn optimizer<O: Optimizer>(&self, make: impl Fn(&dyn Module) -> O) -> Result<FullyShardedOptimizer<O>> {
        let parameters: Vec<(String, Tensor)> =
            self.state.inner.lock().parameters.iter().map(|p| (p.name.clone(), p.tensor.clone())).collect();
        let name_of = |piece: &Piece| parameters[piece.parameter].0.clone();
        let own =
            make(&NamedParameters(self.parts.iter().map(|piece| (name_of(piece), piece.tensor.clone())).collect()));
        if !own.is_elementwise() {
            let message = "a step reads a parameter's elements together, but each rank has a part of them";
            return Err(Error::unsupported(OP, format!("{message}; use `ShardedOptimizer` with `DataParallel`")));
        }
        let numbers: Vec<i64> = self.parts.iter().map(|piece| piece.parameter as i64).collect();
        let groups =
            Groups::new(OP, &make(&NamedParameters(parameters.clone())).options()?, &own.options()?, &numbers)?;
        let (state, parts) = (self.state.clone(), self.parts.clone());
        Ok(FullyShardedOptimizer { state, own, parts, parameters, groups })
    }

    /// Parameters, in the dtype of their parts, and buffers by name, on the host where it has a device, else on the model's device. Rank 0 gets
    /// all, the others none. Every rank calls it.
    pub fn state_dict(&self) -> Result<StateDict> {
        self.chosen_state(|_| self.group().is_first())
    }

    /// The tensors of the units that `is_wanted` chooses by their number; the buffers are those of unit 0.
    fn chosen_state(&self, is_wanted: impl Fn(usize) -> bool) -> Result<StateDict> {
        let mut inner = self.state.inner.lock();
        let mut found = StateDict::new();
        no_grad(|| {
            self.state.leave_all(&mut inner)?;
            for (number, unit) in inner.units.iter().enumerate() {
                let full = self.state.whole(&unit.part)?;
                for member in unit.members.iter().filter(|_| is_wanted(number)) {
                    let Parameter { name, tensor, at, .. } = &inner.parameters[*member];
                    let t = full.narrow(0, *at, tensor.numel())?.in_order_of(tensor)?;
                    found.insert(name.clone(), t.to_device(&host(t.device()))?.copy()?);
                }
            }
            if is_wanted(0) {
                for (name, t) in &self.buffers {
                    found.insert(name.clone(), t.copy()?);
                }
            }
            Ok(found)
        })
    }

    /// [`load_state_dict`](FullySharded::load_state_dict) of the state that rank 0 has; those of other ranks are not read. Every rank calls it,
    /// and has all of the state in the host's memory meanwhile. Errors: as there.
    pub fn load_from_first(&self, state: &StateDict) -> Result<()> {
        let encoded = |state: &StateDict| state.iter().map(|(name, t)| encode(name, t)).collect::<Result<Vec<_>>>();
        let own = if self.group().is_first() { encoded(state)?.concat() } else { Vec::new() };
        let all = self.group().gather_bytes("the weights of rank 0", &own)?;
        let device = self.parts.first().map(|piece| host(piece.tensor.device()));
        let device = device.ok_or_else(|| Error::value(OP, "the model has no parameters"))?;
        self.load_state_dict(&decode(OP, &all[0], &device)?.into_iter().collect())
    }

    /// Gives every rank the buffers of rank 0, such as running statistics, which differ if each rank computes its own.
    pub fn broadcast_buffers(&self) -> Result<()> {
        let group = self.group();
        no_grad(|| self.buffers.iter().try_for_each(|(_, t)| t.copy_(&group.run(Collective::Broadcast(0), t)?)))
    }

    /// Writes parameters and buffers to a folder, as [`isograd_nn::load_part`] and Hugging Face's `transformers` read them: each rank writes a
    /// file of whole tensors, and rank 0 the index. Every rank calls it, with a folder that all see. Errors: `Io`.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let (folder, group) = (folder.as_ref(), self.group());
        let n = group.size();
        let state = self.chosen_state(|unit| unit % n == group.rank())?;
        let file = |rank: usize| format!("model-{:05}-of-{n:05}.safetensors", rank + 1);
        let metadata = Metadata::from([("format".into(), "pt".into())]);
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "made", e))?;
        isograd_nn::save(folder.join(file(group.rank())), &state, &metadata)?;
        let names = state.keys().cloned().collect::<Vec<_>>().join("\n");
        let all = group.gather_bytes("names of saved tensors", names.as_bytes())?;
        if group.is_first() {
            let names = |rank: usize| String::from_utf8_lossy(&all[rank]).lines().map(String::from).collect::<Vec<_>>();
            let files = (0..n).flat_map(|rank| names(rank).into_iter().map(move |name| (name, file(rank))));
            isograd_nn::save_index(folder.join("model.safetensors.index.json"), &files.collect())?;
        }
        group.barrier()
    }

    /// Copies parameters, of any float dtype, and buffers of the same names from a state, on any device, which every rank has. Errors: `Value`
    /// naming every missing tensor, and every one of another shape.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        let mut inner = self.state.inner.lock();
        let buffers = self.buffers.iter().map(|(name, t)| (name, t));
        let expected = inner.parameters.iter().map(|p| (&p.name, &p.tensor)).chain(buffers);
        let problem = |(name, t): (&String, &Tensor)| match state.get(name) {
            None => Some(format!("{name} is missing")),
            Some(s) if s.shape() != t.shape() => Some(format!("{name} is {}, expected {}", s.shape(), t.shape())),
            Some(_) => None,
        };
        let problems: Vec<String> = expected.filter_map(problem).collect();
        if !problems.is_empty() {
            return Err(Error::value(OP, problems.join("; ")));
        }
        no_grad(|| {
            self.state.leave_all(&mut inner)?;
            for piece in &self.parts {
                let Parameter { name, tensor, .. } = &inner.parameters[piece.parameter];
                let own = piece.of(&state[name], tensor)?.to_device(tensor.device())?.cast(piece.tensor.dtype())?;
                piece.tensor.detach().copy_(&own)?;
                tensor.mark_changed();
            }
            for (name, t) in &self.buffers {
                t.copy_(&state[name].cast(t.dtype())?.to_device(t.device())?)?;
            }
            Ok(())
        })
    }
}

impl Drop for FullySharded {
    fn drop(&mut self) {
        self.hooks.drain(..).for_each(Hook::remove);
    }
}

impl Piece {
    /// This part of a whole tensor, which has the shape of `parameter`.
    fn of(&self, whole: &Tensor, parameter: &Tensor) -> Result<Tensor> {
        no_grad(|| {
            let flat = Tensor::empty(whole.numel(), whole.dtype(), whole.device())?;
            flat.in_order_of(parameter)?.copy_(&whole.detach())?;
            flat.narrow(0, self.start, self.tensor.numel())?.copy()
        })
    }
}

impl State {
    /// Takes the leaves and the names of the model's parameters, in its order.
    fn name(&self, named: &[(String, Tensor)]) -> Result<()> {
        let mut inner = self.inner.lock();
        for (name, leaf) in named {
            let Some(known) = inner.parameters.iter_mut().find(|p| p.tensor.shares_memory(leaf)) else {
                let message = format!("{name} was not made by the init that was given, and is not distributed");
                return Err(Error::value(OP, message));
            };
            known.name = name.clone();
            known.tensor = leaf.clone();
        }
        // A tensor that the model does not list, such as a table that was replaced, would be gathered by nobody.
        if let Some(p) = inner.parameters.iter().find(|p| p.name.is_empty()) {
            let message = format!("a parameter {} was made that the model does not list", p.tensor.shape());
            return Err(Error::value(OP, message));
        }
        Ok(())
    }

    /// Joins parameters, which are units of their own so far, to the units of the options.
    fn join_units(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        let kind = |p: &Parameter, units: &[Unit]| {
            let part = &units[p.unit].part;
            ((self.options.unit)(&p.name).to_string(), part.dtype(), part.device().clone())
        };
        let kinds: Vec<_> = inner.parameters.iter().map(|p| kind(p, &inner.units)).collect();
        let mut joined: Vec<(usize, Vec<usize>)> = Vec::new();
        for number in 0..kinds.len() {
            match joined.iter_mut().find(|(first, _)| kinds[*first] == kinds[number]) {
                Some((_, members)) => members.push(number),
                None => joined.push((number, vec![number])),
            }
        }
        let (n, rank) = (self.group.size(), self.group.rank());
        let mut units = Vec::with_capacity(joined.len());
        for (first, members) in joined {
            let places: Vec<usize> = members
                .iter()
                .scan(0, |end, member| {
                    let at = *end;
                    *end += inner.parameters[*member].tensor.numel().next_multiple_of(ALIGNMENT);
                    Some((at, *end))
                })
                .map(|(at, _)| at)
                .collect();
            let count = members.last().zip(places.last()).map_or(0, |(m, at)| at + inner.parameters[*m].tensor.numel());
            let length = part_length(count, n);
            let (_, dtype, device) = &kinds[first];
            let part = Tensor::zeros(length, *dtype, device)?;
            for (member, at) in members.iter().zip(&places) {
                let old = inner.parameters[*member].unit;
                let full = self.whole(&inner.units[old].part)?;
                copy_common(&full.narrow(0, 0, inner.parameters[*member].tensor.numel())?, *at, &part, rank * length)?;
                inner.units[old].part = Tensor::empty(0, *dtype, device)?;
                inner.parameters[*member].at = *at;
            }
            units.push(Unit::new(members, part));
        }
        for (number, unit) in units.iter().enumerate() {
            unit.members.iter().for_each(|member| inner.parameters[*member].unit = number);
        }
        inner.units = units;
        Ok(())
    }

    /// This rank's parts of parameters, as leaves.
    fn pieces(&self) -> Result<Vec<Piece>> {
        let inner = self.inner.lock();
        let inner = &*inner;
        let ranges = |rank: usize| {
            let of_unit = move |unit: &Unit| (rank * unit.part.numel(), (rank + 1) * unit.part.numel());
            inner.parameters.iter().enumerate().filter_map(move |(number, p)| {
                let (start, end) = of_unit(&inner.units[p.unit]);
                let (first, last) = (p.at.max(start), (p.at + p.tensor.numel()).min(end));
                (first < last).then(|| (number, first - p.at, first - start, last - first))
            })
        };
        if let Some(rank) = (0..self.group.size()).find(|rank| ranges(*rank).next().is_none()) {
            return Err(Error::value(OP, format!("the model is too small: rank {rank} has no part of a parameter")));
        }
        ranges(self.group.rank())
            .map(|(parameter, start, at, count)| {
                let part = &inner.units[inner.parameters[parameter].unit].part;
                Ok(Piece { parameter, tensor: part.narrow(0, at, count)?.require_grad()?, start, at })
            })
            .collect()
    }
}

/// The host's device, if the program has it, else this one.
fn host(device: &Device) -> Device {
    Device::cpu().unwrap_or_else(|_| device.clone())
}

/// The optimizer of a [`FullySharded`] model: each rank's `O` steps the rank's parts.
///
/// [`parameters`](Optimizer::parameters) are the parts. The state of [`state_dict`](Optimizer::state_dict) is that of `O` for the whole model,
/// on the host where it has a device: it fits any number of ranks, and `O` alone. Every rank must ask for it at once.
pub struct FullyShardedOptimizer<O> {
    state: Arc<State>,
    own: O,
    parts: Vec<Piece>,
    /// The pages, with their names.
    parameters: Vec<(String, Tensor)>,
    groups: Groups,
}

impl<O: Optimizer> FullyShardedOptimizer<O> {
    /// The norm of all ranks' gradients before scaling. `own` is that of this rank's.
    fn norm(&self, own: Option<&Tensor>) -> Result<Tensor> {
        let own = match own {
            Some(norm) => norm.clone(),
            None => grad_norm(&self.parameters(), 2.0)?,
        };
        let all = self.state.group.run(Collective::AllGather, &own)?;
        total(Total::Norm, &[&all])
    }

    fn names(&self) -> Vec<String> {
        self.parameters.iter().map(|(name, _)| name.clone()).collect()
    }
}

impl<O: Optimizer> Optimizer for FullyShardedOptimizer<O> {
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        let mut inner = self.state.inner.lock();
        if inner.units.iter().any(|unit| unit.is_reduced || unit.gradients.is_some()) {
            return Err(Error::value(OP, "gradients are not reduced; call `synchronize` before a step"));
        }
        no_grad(|| self.state.leave_all(&mut inner))?;
        drop(inner);
        let norm =
            if self.own.clips_by_norm() { Some(self.norm(scaling.and_then(|s| s.norm.as_ref()))?) } else { None };
        let device = self.parameters[0].1.device();
        let scalar = |value: f64| Tensor::full((), value, DType::F32, device);
        match (scaling, norm) {
            (Some(Scaling { inv_scale, found_inf, .. }), norm) => {
                // The scaler reads it too: all ranks lower the scale if one has found infinity.
                let found = self.state.group.run(Collective::AllReduce(Reduction::Max), found_inf)?;
                found_inf.copy_(&found)?;
                let (inv_scale, found_inf) = (inv_scale.clone(), found_inf.clone());
                self.own.step_scaled(Some(&Scaling { inv_scale, found_inf, norm }))?;
            }
            (None, Some(norm)) => {
                let (inv_scale, found_inf) = (scalar(1.0)?, scalar(0.0)?);
                self.own.step_scaled(Some(&Scaling { inv_scale, found_inf, norm: Some(norm) }))?;
            }
            (None, None) => self.own.step_scaled(None)?,
        }
        self.zero_grad();
        let mut inner = self.state.inner.lock();
        inner.last_order = std::mem::take(&mut inner.order);
        inner.position = 0;
        self.parameters.iter().for_each(|(_, t)| t.mark_changed());
        Ok(())
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.parts.iter().map(|piece| piece.tensor.clone()).collect()
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.own.set_lr(lr)
    }

    fn learning_rate(&self) -> f64 {
        self.own.learning_rate()
    }

    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.own)
    }

    fn zero_grad(&self) {
        self.own.zero_grad();
        self.state.inner.lock().units.iter_mut().for_each(|unit| unit.mean = None);
    }

    fn state_dict(&self) -> Result<StateDict> {
        let device = host(self.parameters[0].1.device());
        let own: Vec<(String, Tensor)> = self
            .own
            .state_dict()?
            .into_iter()
            .filter_map(|(name, t)| Some((self.groups.whole_name(&name)?, t)))
            .collect();
        let encoded: Vec<u8> = own.iter().map(|(name, t)| encode(name, t)).collect::<Result<Vec<_>>>()?.concat();
        let all = self.state.group.gather_bytes("states of the optimizer", &encoded)?;
        let names = self.names();
        // Parts of a parameter's state come in the order of the ranks, which is that of memory.
        let mut pieces: std::collections::BTreeMap<String, Vec<Tensor>> = Default::default();
        for bytes in &all {
            for (name, t) in decode(OP, bytes, &device)? {
                pieces.entry(name).or_default().push(t);
            }
        }
        let mut state = StateDict::new();
        for (name, parts) in pieces {
            let t = match parameter_of(&name, &names) {
                Some((i, _)) if parts[0].rank() == 1 => {
                    let flat = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
                    flat.in_order_of(&self.parameters[i].1)?.copy()?
                }
                _ => parts[0].clone(),
            };
            state.insert(name, t);
        }
        self.groups.add_members(&mut state, &device)?;
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let device = host(self.parameters[0].1.device());
        let names = self.names();
        let mut own = self.groups.part_options(OP, state, &device)?;
        let now = self.own.state_dict()?;
        for (name, t) in state {
            let Some((i, _)) = parameter_of(name, &names) else {
                // The optimizer refuses names that are nobody's.
                if !Groups::is_option(name) {
                    own.insert(name.clone(), t.clone());
                }
                continue;
            };
            let Some(piece) = self.parts.iter().find(|piece| piece.parameter == i) else { continue };
            let parameter = &self.parameters[i].1;
            let is_part = now.get(name).is_some_and(|own| own.rank() == 1) && t.shape() == parameter.shape();
            own.insert(name.clone(), if is_part { piece.of(t, parameter)? } else { t.clone() });
        }
        self.own.load_state_dict(&own)
    }
}
