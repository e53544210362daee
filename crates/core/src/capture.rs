//! Captured steps: the work that a closure enqueues is recorded once, and replayed without the host's work.

use crate::random::{Journal, RngState, journal};
use crate::tensor::Storage;
use crate::{DType, Device, Error, Result, Rng, Shape, Tensor, thread};
use std::any::Any;
use std::sync::Arc;

const OP: &str = "capture";

/// The arguments and results of a captured step: tensors, and tuples and lists of tensors.
pub trait Tensors: Sized {
    /// The same structure with each tensor replaced, in order.
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;

    /// Calls `f` with each tensor, in the order of [`map`](Tensors::map).
    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor));

    /// All tensors, in the order of [`map`](Tensors::map).
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = Vec::new();
        self.visit(&mut |t| all.push(t));
        all
    }
}

impl Tensors for Tensor {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        f(self)
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        f(self);
    }
}

impl<T: Tensors> Tensors for Option<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.as_ref().map(|t| t.map(f)).transpose()
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        self.iter().for_each(|t| t.visit(f));
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|t| t.map(f)).collect()
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        self.iter().for_each(|t| t.visit(f));
    }
}

macro_rules! tuples {
    ($(($($name:ident $i:tt),*))*) => {
        $(impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            fn map(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$i.map(_f)?,)*))
            }

            fn visit<'a>(&'a self, _f: &mut dyn FnMut(&'a Tensor)) {
                $(self.$i.visit(_f);)*
            }
        })*
    };
}
tuples! { () (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }

/// A closure whose work is recorded and replayed where the device can record; see [`Device::capture`].
pub struct Step<'a, I, O> {
    device: Device,
    f: Box<dyn FnMut(I) -> Result<O> + 'a>,
    /// Shape and dtype of each input, set after the first successful run.
    signature: Option<Vec<(Shape, DType)>>,
    state: State<I, O>,
}

enum State<I, O> {
    /// Not run yet.
    New,
    /// Run once: programs are compiled, and states exist. The journal holds the generators drawn from.
    Warm(Journal),
    /// The device does not record.
    Plain,
    Recorded(Recorded<I, O>),
}

struct Recorded<I, O> {
    graph: Box<dyn Any + Send + Sync>,
    /// The inputs that the recording reads.
    inputs: I,
    outputs: O,
    /// The memory of outputs that are lent to the caller until the next run. Other outputs are copied: the step keeps them too.
    lent: Vec<Arc<Storage>>,
    generators: Vec<Generator>,
}

/// A generator that a recording draws from, and the device memory in which the recording finds its state.
struct Generator {
    rng: Rng,
    state: Tensor,
    /// Blocks of draws per run.
    blocks: u64,
}

/// A generator's state while a step is recorded, and its device memory.
pub(crate) struct Base {
    rng: Rng,
    start: RngState,
    state: Tensor,
}

/// The captured step that a thread runs.
pub(crate) enum Capture {
    None,
    Plain,
    /// Recorded, with its generators.
    Recorded(Vec<Base>),
}

/// True inside a captured step, on this thread.
pub fn is_in_step() -> bool {
    thread::with(|thread| !matches!(*thread.capture.borrow(), Capture::None))
}

/// Returns an error inside a captured step, because a recording cannot wait for the device.
pub(crate) fn check_wait(op: &'static str) -> Result<()> {
    match is_in_step() {
        true => Err(Error::value(
            op,
            "a captured step waits for the device here; return the tensor from the step and read it afterwards",
        )),
        false => Ok(()),
    }
}

/// The start of a draw: `state`, or an offset `state` from a state on the device, i64 `[3]`: seed, offset, stream.
#[derive(Clone)]
pub(crate) struct Draw {
    pub state: RngState,
    pub base: Option<Tensor>,
}

impl Draw {
    /// The attributes of a random kernel.
    pub fn ints(&self, threshold: i64) -> [i64; 4] {
        let RngState { seed, offset, stream } = self.state;
        [seed as i64, offset as i64, stream as i64, threshold]
    }
}

/// Expresses `state` relative to the device memory of `rng`, if a step is being recorded.
pub(crate) fn draw(rng: &Rng, state: RngState) -> Result<Draw> {
    thread::with(|thread| {
        let capture = thread.capture.borrow();
        let Capture::Recorded(bases) = &*capture else { return Ok(Draw { state, base: None }) };
        let base = bases
            .iter()
            .find(|base| base.rng.is(rng))
            .ok_or_else(|| Error::value(OP, "the step draws from a generator that its first run did not draw from"))?;
        let RngState { seed, offset, stream } = base.start;
        let distance = RngState {
            seed: state.seed.wrapping_sub(seed),
            offset: state.offset.wrapping_sub(offset),
            stream: state.stream.wrapping_sub(stream),
        };
        Ok(Draw { state: distance, base: Some(base.state.clone()) })
    })
}

/// Runs `f` inside a captured step.
fn inside<R>(capture: Capture, f: impl FnOnce() -> R) -> R {
    struct Leave(Capture);
    impl Drop for Leave {
        fn drop(&mut self) {
            let outer = std::mem::replace(&mut self.0, Capture::None);
            thread::with(|thread| thread.capture.replace(outer));
        }
    }
    let _leave = Leave(thread::with(|thread| thread.capture.replace(capture)));
    f()
}

impl Device {
    /// Runs `f`. A GPU launches what `f` enqueues when it ends, or when it waits for the device for the first time; before, the kernels
    /// of all of it are compiled side by side. Other threads that use the device wait meanwhile. Errors: those of `f`; those of the calls
    /// that were put off, where `f` itself has none.
    pub fn put_off<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let (mut f, mut result) = (Some(f), None);
        self.backend().put_off(&mut || {
            result = f.take().map(|f| f()).transpose()?;
            Ok(())
        })?;
        result.ok_or_else(|| Error::backend("put_off", "the backend did not run the closure"))
    }

    /// A closure that is recorded and replayed where the device can do so, and called plainly elsewhere. It can be a training step,
    /// or any other work whose shapes do not change.
    ///
    /// The first run calls `step`, and launches what it enqueued when it has returned: the kernels of the whole step are compiled side by
    /// side before. The second run calls it once more and records the work that it enqueues. Each later run replays
    /// the recording: it copies inputs to the recording's inputs, advances the generators, and returns the recording's outputs. The next run copies
    /// those that the caller still has. Work that `step` does on the host happens in the first two runs only. Tensors change in place as they would without a recording:
    /// parameters, states of optimizers, step counts and learning rates. A step that calls `backward` must also use up or forget
    /// the gradients, as [`Optimizer::step`] does. The `Step` keeps the memory of its tensors until it is dropped.
    ///
    /// On every device the inputs must keep their shapes and dtypes. The step may wait neither for the device nor for another
    /// thread that uses a device of the same kind: that thread may have to wait until the step is recorded.
    ///
    /// [`Optimizer::step`]: https://docs.rs/isograd/latest/isograd/nn/trait.Optimizer.html
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device, batches: Vec<Tensor>) -> Result<()> {
    /// let mut step = device.capture(|x: Tensor| x.exp()?.sum(..));
    /// for x in batches {
    ///     let sum = step.run(x)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture<'a, I: Tensors, O: Tensors>(&self, step: impl FnMut(I) -> Result<O> + 'a) -> Step<'a, I, O> {
        Step { device: self.clone(), f: Box::new(step), signature: None, state: State::New }
    }
}

impl<I: Tensors, O: Tensors> Step<'_, I, O> {
    /// Runs the step. Outputs are outside of the tape. Errors: the closure's errors; `Shape` or `Dtype` if the inputs differ from
    /// the first run's; `Device` if they are on another device; `Value` if they are on the tape, or if the closure waits for the
    /// device.
    pub fn run(&mut self, inputs: I) -> Result<O> {
        let signature = self.check(&inputs)?;
        let outputs = match std::mem::replace(&mut self.state, State::New) {
            State::New => {
                let (outputs, generators) = journal(|| self.device.clone().put_off(|| self.plain(inputs)));
                let outputs = outputs?;
                self.state = State::Warm(generators);
                outputs
            }
            State::Warm(generators) => self.record(inputs, generators)?,
            State::Plain => {
                self.state = State::Plain;
                self.plain(inputs)?
            }
            State::Recorded(mut recorded) => {
                let outputs = recorded.replay(&self.device, &inputs);
                self.state = State::Recorded(recorded);
                outputs?
            }
        };
        self.signature = Some(signature);
        Ok(outputs)
    }

    /// True once runs replay a recording.
    pub fn is_recorded(&self) -> bool {
        matches!(self.state, State::Recorded(_))
    }

    /// The recorded program in words: its calls, which of them are one kernel, and its memory. `None` before the step is recorded.
    pub fn explain(&self) -> Option<String> {
        match &self.state {
            State::Recorded(recorded) => self.device.backend().explain(&*recorded.graph),
            _ => None,
        }
    }

    /// The shapes and dtypes of the inputs. Returns an error if they differ from earlier runs.
    fn check(&self, inputs: &I) -> Result<Vec<(Shape, DType)>> {
        let mut signature = Vec::new();
        for (i, t) in inputs.tensors().into_iter().enumerate() {
            if *t.device() != self.device {
                let message = format!("input {i} is on {}, the step is captured on {}", t.device(), self.device);
                return Err(Error::device(OP, message));
            }
            if t.requires_grad() {
                return Err(Error::value(OP, format!("input {i} is on the tape; use `detach`")));
            }
            match self.signature.as_ref().map(|known| known.get(i)) {
                Some(Some((shape, _))) if shape != t.shape() => {
                    let message = format!("input {i} has shape {}, the step was captured with {shape}", t.shape());
                    return Err(Error::shape(OP, message));
                }
                Some(Some((_, dtype))) if *dtype != t.dtype() => {
                    let message = format!("input {i} is {}, the step was captured with {dtype}", t.dtype());
                    return Err(Error::dtype(OP, message));
                }
                _ => signature.push((t.shape().clone(), t.dtype())),
            }
        }
        match &self.signature {
            Some(known) if known.len() != signature.len() => {
                let message = format!("{} inputs, the step was captured with {}", signature.len(), known.len());
                Err(Error::shape(OP, message))
            }
            _ => Ok(signature),
        }
    }

    fn plain(&mut self, inputs: I) -> Result<O> {
        let outputs = inside(Capture::Plain, || (self.f)(inputs))?;
        outputs.map(&mut |t| Ok(t.detach()))
    }

    /// Records the step and runs the recording.
    fn record(&mut self, inputs: I, generators: Journal) -> Result<O> {
        let own = inputs.map(&mut Tensor::copy)?;
        let mut bases = Vec::new();
        for (rng, _) in generators {
            let state = Tensor::allocate(OP, &Shape::from(3), DType::I64, &self.device)?;
            bases.push(Base { start: rng.state(), rng, state });
        }
        let mut outputs = None;
        let starts: Vec<_> = bases.iter().map(|base| (base.rng.clone(), base.start, base.state.clone())).collect();
        let mut bases = Some(bases);
        let f = &mut self.f;
        let graph = self.device.backend().capture(&mut || {
            let capture = bases.take().map_or(Capture::Plain, Capture::Recorded);
            let found = inside(capture, || f(own.map(&mut |t| Ok(t.clone()))?))?;
            // Without the tape, which would hold memory of the step.
            outputs = Some(found.map(&mut |t| Ok(t.detach()))?);
            Ok(())
        })?;
        let (Some(graph), Some(outputs)) = (graph, outputs) else {
            self.state = State::Plain;
            return self.plain(inputs);
        };
        let blocks = |rng: &Rng, start: RngState| rng.state().offset.wrapping_sub(start.offset);
        let generators: Vec<_> = starts
            .into_iter()
            .map(|(rng, start, state)| {
                let blocks = blocks(&rng, start);
                // The replay takes these draws again.
                rng.set_state(start);
                Generator { rng, state, blocks }
            })
            .collect();
        let mut lent: Vec<Arc<Storage>> = Vec::new();
        for t in outputs.tensors() {
            let storage = &t.0.storage;
            let is_known = lent.iter().any(|known| Arc::ptr_eq(known, storage));
            // The step may keep a tensor that it returns.
            let is_of_outputs = Arc::strong_count(storage) == holders(&outputs, storage);
            if !is_known && is_of_outputs && self.device.backend().lend_result(storage.memory()) {
                lent.push(storage.clone());
            }
        }
        let mut recorded = Recorded { graph, inputs: own, outputs, lent, generators };
        let outputs = recorded.replay(&self.device, &inputs);
        self.state = State::Recorded(recorded);
        outputs
    }
}

/// How many of some tensors have this memory.
fn holders<O: Tensors>(outputs: &O, storage: &Arc<Storage>) -> usize {
    outputs.tensors().into_iter().filter(|t| Arc::ptr_eq(&t.0.storage, storage)).count()
}

impl<I: Tensors, O: Tensors> Recorded<I, O> {
    fn replay(&mut self, device: &Device, inputs: &I) -> Result<O> {
        self.reclaim(device)?;
        let mut pairs = self.inputs.tensors().into_iter().zip(inputs.tensors());
        pairs.try_for_each(|(own, t)| own.copy_(t))?;
        for Generator { rng, state, blocks } in &self.generators {
            let RngState { seed, offset, stream } = rng.state();
            state.upload(&[seed, offset, stream].map(u64::to_ne_bytes).concat())?;
            rng.set_state(RngState { seed, offset: offset.wrapping_add(*blocks), stream });
        }
        device.backend().replay(&*self.graph)?;
        // Another thread that records meanwhile moves what is lent, with the values of the run before.
        self.reclaim(device)?;
        let is_lent = |t: &Tensor| self.lent.iter().any(|storage| Arc::ptr_eq(storage, &t.0.storage));
        self.outputs.map(&mut |t| if is_lent(t) { Ok(t.with_layout(t.layout().clone())) } else { t.copy() })
    }

    /// Takes back the memory of results that the caller still has, which gets a copy of them.
    fn reclaim(&mut self, device: &Device) -> Result<()> {
        let outputs = &mut self.outputs;
        for storage in &mut self.lent {
            let is_held = Arc::strong_count(storage) > holders(outputs, storage) + 1;
            let Some(memory) = device.backend().reclaim_result(storage.memory(), is_held)? else { continue };
            let own = Arc::new(Storage::new(memory, device.clone()));
            *outputs = outputs.map(&mut |t| {
                Ok(if Arc::ptr_eq(&t.0.storage, storage) { t.with_storage(own.clone()) } else { t.clone() })
            })?;
            *storage = own;
        }
        Ok(())
    }
}
