//! Data parallelism: every rank has the whole model and its own samples, and gradients are means over the ranks.

use crate::worker::{Started, Worker};
use crate::{Group, Reduction};
use isograd_core::collective::Collective;
use isograd_core::tape::Hook;
use isograd_core::{DType, Error, Result, Tensor, is_in_step, no_grad};
use isograd_nn::Module;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const OP: &str = "data_parallel";

/// What happens to a parameter that has no gradient in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Unused {
    /// It is an error that names the parameter: gradients of the other ranks would be lost.
    #[default]
    Error,
    /// Its gradient is 0 on this rank. If it has no gradient on any rank, it gets none.
    Zero,
}

/// The options of [`DataParallel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ParallelOptions {
    /// Bytes of gradients that are reduced at once, at least, unless there are no more.
    pub bucket: usize,
    /// What happens to a parameter without a gradient.
    pub unused: Unused,
    /// The steps between two comparisons of all ranks' weights; none are compared after the start if it is `None`.
    pub check_every: Option<u64>,
    /// The dtype in which gradients are reduced, such as bf16, which halves the bytes of f32; that of the parameters if it is `None`.
    pub reduce: Option<DType>,
}

impl Default for ParallelOptions {
    /// Buckets of 25 MB; a parameter without a gradient is an error; weights are compared every 1000 steps; gradients are reduced in their
    /// dtype.
    fn default() -> ParallelOptions {
        ParallelOptions { bucket: 25_000_000, unused: Unused::Error, check_every: Some(1000), reduce: None }
    }
}

/// Makes the gradients of a model the means over the ranks of a group.
///
/// Every rank computes the mean loss of its own samples and calls [`backward`](Tensor::backward). Gradients are gathered in buckets, in
/// the order in which the pass computes them, and reduced while the pass goes on. [`synchronize`](DataParallel::synchronize) ends the
/// reductions; then every rank's optimizer takes the same step. If the ranks have different numbers of samples, each loss is
/// multiplied by [`Group::share`].
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{Device, Result, Tensor};
/// # use isograd_nn::{Forward, Init, Linear, Optimizer, Sgd};
/// # use isograd_parallel::{DataParallel, Group, ParallelOptions, threads};
/// fn train(group: &Group, x: &Tensor, y: &Tensor) -> Result<()> {
///     let model = Linear::new(4, 1, &Init::new(x.device()))?;
///     let parallel = DataParallel::new(&model, group, &ParallelOptions::default())?;
///     let mut optimizer = Sgd::new(&model);
///     for _ in 0..10 {
///         model.forward(x)?.sub(y)?.square()?.mean(..)?.backward()?;
///         parallel.synchronize()?;
///         optimizer.step()?;
///     }
///     Ok(())
/// }
/// # threads(2, |group| {
/// #     let x = Tensor::ones((2, 4), isograd_core::DType::F32, &Device::cpu()?)?;
/// #     train(&group, &x, &x.narrow(1, 0, 1)?)
/// # }).map(drop)
/// # .unwrap();
/// ```
pub struct DataParallel {
    state: Arc<State>,
    hooks: Vec<Hook>,
}

struct State {
    group: Group,
    options: ParallelOptions,
    parameters: Vec<(String, Tensor)>,
    buffers: Vec<(String, Tensor)>,
    worker: Worker,
    /// False while gradients of several passes are accumulated.
    is_reducing: AtomicBool,
    steps: AtomicU64,
    pass: Mutex<Pass>,
}

/// Gradients begin at multiples of so many elements, so that kernels read them in words.
const WORDS: usize = 64;

/// Parameters whose gradients are reduced at once.
struct Bucket {
    /// Their indices, and where the gradient of each begins.
    members: Vec<(usize, usize)>,
    elements: usize,
    /// The gradients that have come, one after the other.
    flat: Option<Tensor>,
    missing: usize,
    started: Option<Started>,
}

struct Pass {
    buckets: Vec<Bucket>,
    /// The bucket and the place in it of each parameter.
    places: Vec<(usize, usize)>,
    /// Parameters whose gradients have come, in this order.
    arrived: Vec<usize>,
    has_arrived: Vec<bool>,
    /// True for each parameter that is not frozen. A frozen parameter is in no bucket.
    trained: Vec<bool>,
    /// The first bucket that was not started.
    next: usize,
    /// The buckets have the order of a pass.
    is_ordered: bool,
}

impl DataParallel {
    /// Gives every rank the parameters and buffers of rank 0, and makes sure that all have the same. Parameters that are frozen get no
    /// gradients; every rank freezes the same. Errors: `Value` if the ranks' models differ, naming the first difference.
    pub fn new(model: &(impl Module + ?Sized), group: &Group, options: &ParallelOptions) -> Result<DataParallel> {
        let (parameters, buffers) = (model.named_parameters(), model.named_buffers());
        check_models(group, parameters.iter().chain(&buffers))?;
        let order: Vec<usize> = (0..parameters.len()).rev().collect();
        // Ranks that use other parameters have no common order.
        let is_ordered = options.unused == Unused::Zero;
        let pass = Mutex::new(Pass::new(&parameters, &order, options.bucket, is_ordered));
        let worker = Worker::new(group.duplicate()?)?;
        let (group, is_reducing, steps) = (group.clone(), AtomicBool::new(true), AtomicU64::new(0));
        let state = Arc::new(State { group, options: *options, parameters, buffers, worker, is_reducing, steps, pass });
        let made = DataParallel { state, hooks: Vec::new() };
        made.broadcast(&made.state.parameters)?;
        made.broadcast(&made.state.buffers)?;
        made.check_weights()?;
        made.with_hooks()
    }

    fn with_hooks(mut self) -> Result<DataParallel> {
        for (i, (_, parameter)) in self.state.parameters.iter().enumerate() {
            let state = Arc::downgrade(&self.state);
            let arrived = move |dy: &Tensor| match state.upgrade() {
                Some(state) => state.arrived(i, dy).map(|()| None),
                None => Ok(None),
            };
            match parameter.register_hook(arrived) {
                Ok(hook) => self.hooks.push(hook),
                // A constant, which no pass reaches.
                Err(_) if !parameter.requires_grad() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self)
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.state.group
    }

    /// The numbers of elements of the buckets, in the order in which they are reduced. It is that of a pass from the second step on.
    pub fn buckets(&self) -> Vec<usize> {
        self.state.pass.lock().buckets.iter().map(|bucket| bucket.elements).collect()
    }

    /// Runs `f` without reductions: backward passes in it add to gradients that stay on this rank. The next pass outside reduces the
    /// sums. Every rank does the same.
    pub fn accumulate<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a AtomicBool, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::Release);
            }
        }
        let before = self.state.is_reducing.swap(false, Ordering::AcqRel);
        let _restore = Restore(&self.state.is_reducing, before);
        f()
    }

    /// Ends a step's reductions: gradients are then the means over the ranks. Called after the step's last backward pass. Errors: `Value`
    /// naming the parameters without a gradient, according to the options, or parameters that differ between the ranks; else as the
    /// group's.
    pub fn synchronize(&self) -> Result<()> {
        let state = &self.state;
        let mut pass = state.pass.lock();
        let result = no_grad(|| state.finish(&mut pass));
        let order = pass.restart();
        result?;
        let step = state.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(order) = order {
            let own = order.iter().flat_map(|i| (*i as u64).to_le_bytes()).collect::<Vec<u8>>();
            let all = state.group.gather_bytes("order of gradients", &own)?;
            let order: Vec<usize> =
                all[0].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word) as usize).collect();
            *pass = Pass::new(&state.parameters, &order, state.options.bucket, true);
        }
        drop(pass);
        // A recording reads no values.
        if is_in_step() { Ok(()) } else { self.check_after(step) }
    }

    /// [`check_weights`](DataParallel::check_weights) if it is due after `steps` steps. [`synchronize`](DataParallel::synchronize) does this,
    /// except in a captured step, after which the loop does.
    pub fn check_after(&self, steps: u64) -> Result<()> {
        match self.state.options.check_every {
            Some(every) if steps.is_multiple_of(every.max(1)) => self.check_weights(),
            _ => Ok(()),
        }
    }

    /// Gives every rank the buffers of rank 0, such as running statistics, which differ if each rank computes its own.
    pub fn broadcast_buffers(&self) -> Result<()> {
        self.broadcast(&self.state.buffers)
    }

    /// Compares the parameters of all ranks by their checksums. Errors: `Value` naming the first parameter that differs, and the ranks.
    pub fn check_weights(&self) -> Result<()> {
        let group = &self.state.group;
        if group.size() == 1 {
            return Ok(());
        }
        let mut own = Vec::new();
        for (_, parameter) in &self.state.parameters {
            own.extend(crc32fast::hash(&parameter.to_bytes()?).to_le_bytes());
        }
        let all = group.gather_bytes("comparison of weights", &own)?;
        for (i, (name, _)) in self.state.parameters.iter().enumerate() {
            let sums: Vec<&[u8]> = all.iter().map(|sums| &sums[4 * i..4 * i + 4]).collect();
            if let Some(rank) = sums.iter().position(|sum| *sum != sums[0]) {
                return Err(Error::value(OP, format!("{name} of rank {rank} differs from that of rank 0")));
            }
        }
        Ok(())
    }

    fn broadcast(&self, tensors: &[(String, Tensor)]) -> Result<()> {
        no_grad(|| tensors.iter().try_for_each(|(_, t)| t.copy_(&self.state.group.run(Collective::Broadcast(0), t)?)))
    }
}

impl Drop for DataParallel {
    fn drop(&mut self) {
        self.hooks.drain(..).for_each(Hook::remove);
    }
}

impl State {
    /// Takes a gradient into its bucket, and starts the buckets that are full.
    fn arrived(&self, i: usize, dy: &Tensor) -> Result<()> {
        if self.group.size() == 1 || !self.is_reducing.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut pass = self.pass.lock();
        if pass.arrived.is_empty() {
            self.follow_freezing(&mut pass);
        }
        if pass.has_arrived[i] {
            let message = format!("{} has a second gradient before `synchronize`", self.parameters[i].0);
            return Err(Error::value(OP, format!("{message}; use `accumulate` for all passes of a step but the last")));
        }
        pass.arrived.push(i);
        pass.has_arrived[i] = true;
        let (_, parameter) = &self.parameters[i];
        // The pass has not added it to what earlier passes have left.
        match parameter.grad() {
            Some(sum) => pass.put(i, parameter, &sum.add(dy)?)?,
            None => pass.put(i, parameter, dy)?,
        }
        self.start_full(&mut pass)
    }

    /// Makes other buckets if parameters were frozen or taken back since the last pass, as on every rank.
    fn follow_freezing(&self, pass: &mut Pass) {
        if pass.trained != trained(&self.parameters) {
            let order: Vec<usize> = (0..self.parameters.len()).rev().collect();
            *pass = Pass::new(&self.parameters, &order, self.options.bucket, self.options.unused == Unused::Zero);
        }
    }

    /// Starts buckets in their order, which is the same on all ranks, as far as they are full.
    fn start_full(&self, pass: &mut Pass) -> Result<()> {
        while let Some(bucket) = pass.buckets.get_mut(pass.next) {
            if bucket.missing > 0 {
                break;
            }
            if let Some(flat) = bucket.flat.take() {
                let flat = flat.cast(self.options.reduce.unwrap_or(flat.dtype()))?;
                bucket.started = Some(self.worker.start(Collective::AllReduce(Reduction::Mean), flat)?);
            }
            pass.next += 1;
        }
        Ok(())
    }

    fn finish(&self, pass: &mut Pass) -> Result<()> {
        if self.group.size() == 1 {
            return Ok(());
        }
        if pass.arrived.is_empty() {
            self.follow_freezing(pass);
        }
        let missing: Vec<usize> =
            (0..self.parameters.len()).filter(|i| pass.trained[*i] && !pass.has_arrived[*i]).collect();
        let used = self.used(&missing)?;
        for i in missing {
            let (_, parameter) = &self.parameters[i];
            match parameter.grad() {
                Some(sum) => pass.put(i, parameter, &sum)?,
                None => pass.put(i, parameter, &parameter.detach().zeros_like()?)?,
            }
        }
        self.start_full(pass)?;
        for Bucket { members, started, .. } in &mut pass.buckets {
            let Some(started) = started.take() else { continue };
            let first = &self.parameters[members[0].0].1;
            let flat = self.worker.wait(started)?.cast(first.dtype())?;
            for (i, at) in members.iter().filter(|(i, _)| used[*i]) {
                let (_, parameter) = &self.parameters[*i];
                // Gradients stay where they were reduced, each in elements of its own.
                parameter.set_grad(Some(laid_out(&flat, *at, parameter)?.detach()))?;
            }
        }
        Ok(())
    }

    /// The parameters that have a gradient on any rank. Errors: `Value` naming those without, if the options ask for it.
    fn used(&self, missing: &[usize]) -> Result<Vec<bool>> {
        let is_missing = |i: usize| missing.binary_search(&i).is_ok();
        let has_gradient = |i: usize| !is_missing(i) || self.parameters[i].1.grad().is_some();
        if self.options.unused == Unused::Error {
            let unused: Vec<&str> = missing.iter().map(|i| self.parameters[*i].0.as_str()).collect();
            if unused.is_empty() {
                return Ok(vec![true; self.parameters.len()]);
            }
            let (names, rank) = (unused.join(", "), self.group.rank());
            let message = format!("no gradient on rank {rank} in this pass: {names}");
            return Err(Error::value(OP, format!("{message}; with `Unused::Zero`, gradients are 0 there")));
        }
        let own: Vec<u8> = (0..self.parameters.len()).map(|i| has_gradient(i).into()).collect();
        let all = self.group.gather_bytes("unused parameters", &own)?;
        Ok((0..own.len()).map(|i| all.iter().any(|used| used[i] == 1)).collect())
    }
}

impl Pass {
    /// Buckets of parameters in this order. Those of a bucket have one dtype and device.
    fn new(parameters: &[(String, Tensor)], order: &[usize], bytes: usize, is_ordered: bool) -> Pass {
        let mut buckets: Vec<Bucket> = Vec::new();
        let (mut places, trained) = (vec![(0, 0); parameters.len()], trained(parameters));
        for i in order.iter().filter(|i| trained[**i]) {
            let t = &parameters[*i].1;
            let fits = |bucket: &Bucket| {
                let first = &parameters[bucket.members[0].0].1;
                let has_room = bucket.elements * first.dtype().size() < bytes;
                has_room && first.dtype() == t.dtype() && first.device() == t.device()
            };
            if !buckets.last().is_some_and(fits) {
                buckets.push(Bucket { members: Vec::new(), elements: 0, flat: None, missing: 0, started: None });
            }
            let place = buckets.len() - 1;
            let bucket = &mut buckets[place];
            places[*i] = (place, bucket.elements);
            bucket.members.push((*i, bucket.elements));
            bucket.elements += t.numel().next_multiple_of(WORDS);
            bucket.missing += 1;
        }
        let has_arrived = vec![false; parameters.len()];
        Pass { buckets, places, arrived: Vec::new(), has_arrived, trained, next: 0, is_ordered }
    }

    /// Copies a gradient into its bucket.
    fn put(&mut self, i: usize, parameter: &Tensor, gradient: &Tensor) -> Result<()> {
        let (place, at) = self.places[i];
        let bucket = &mut self.buckets[place];
        if bucket.flat.is_none() {
            bucket.flat = Some(Tensor::empty(bucket.elements, parameter.dtype(), parameter.device())?);
        }
        if let Some(flat) = &bucket.flat {
            laid_out(flat, at, parameter)?.copy_(&gradient.detach())?;
        }
        bucket.missing -= 1;
        Ok(())
    }

    /// Forgets the pass. Returns the order of its gradients, if the buckets have another.
    fn restart(&mut self) -> Option<Vec<usize>> {
        for bucket in &mut self.buckets {
            (bucket.flat, bucket.started, bucket.missing) = (None, None, bucket.members.len());
        }
        self.next = 0;
        self.has_arrived.fill(false);
        let arrived = std::mem::take(&mut self.arrived);
        let is_whole = arrived.len() == self.trained.iter().filter(|is| **is).count();
        (!self.is_ordered && is_whole && !arrived.is_empty()).then_some(arrived)
    }
}

/// Which parameters are not frozen.
fn trained(parameters: &[(String, Tensor)]) -> Vec<bool> {
    parameters.iter().map(|(_, parameter)| parameter.requires_grad()).collect()
}

/// A parameter's place in a bucket, in the parameter's order of memory, so that gradients are copied in theirs.
fn laid_out(flat: &Tensor, at: usize, parameter: &Tensor) -> Result<Tensor> {
    let own = flat.narrow(0, at, parameter.numel())?;
    // A leaf of a view may have gaps.
    if parameter.layout().is_dense() { own.in_order_of(parameter) } else { own.reshape(parameter.shape()) }
}

/// Makes sure that all ranks have the same names, shapes and dtypes. Errors: `Value` naming the first difference.
pub(crate) fn check_models<'t>(group: &Group, tensors: impl Iterator<Item = &'t (String, Tensor)>) -> Result<()> {
    let mut own = String::new();
    for (name, t) in tensors {
        let _ = writeln!(own, "{name} {} {}", t.dtype(), t.shape());
    }
    let all = group.gather_bytes("comparison of models", own.as_bytes())?;
    let lines = |rank: usize| String::from_utf8_lossy(&all[rank]).lines().map(String::from).collect::<Vec<_>>();
    let first = lines(0);
    for rank in 1..group.size() {
        let other = lines(rank);
        if let Some(i) = (0..first.len().max(other.len())).find(|i| first.get(*i) != other.get(*i)) {
            let line = |lines: &[String]| lines.get(i).map_or("nothing", String::as_str).to_string();
            let (here, there) = (line(&first), line(&other));
            let message = format!("the models differ: tensor {i} is {here} on rank 0, {there} on rank {rank}");
            return Err(Error::value(OP, message));
        }
    }
    Ok(())
}
