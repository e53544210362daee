//! Captured steps: what a closure enqueues is recorded once, and then runs again without the host's work.

use crate::random::{Journal, RngState, journal};
use crate::{DType, Device, Error, Result, Rng, Shape, Tensor};
use std::any::Any;
use std::cell::{Cell, RefCell};

const OP: &str = "capture";

/// What a captured step takes and returns: tensors, tuples and lists of them.
pub trait Tensors: Sized {
    /// The same structure with each tensor replaced, in order.
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl Tensors for Tensor {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        f(self)
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|t| t.map(f)).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident $i:tt),*))*) => {
        $(impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            fn map(&self, _f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$i.map(_f)?,)*))
            }
        })*
    };
}
tuples! { () (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }

/// A closure that runs as a recording of its work where the device can record; see [`Device::capture`].
pub struct Step<'a, I, O> {
    device: Device,
    f: Box<dyn FnMut(I) -> Result<O> + 'a>,
    /// Shape and dtype of each input, once a run has gone well.
    signature: Option<Vec<(Shape, DType)>>,
    state: State<I, O>,
}

enum State<I, O> {
    /// Not run yet.
    New,
    /// Run once: programs are compiled, and states exist. These generators were drawn from.
    Warm(Journal),
    /// The device does not record.
    Plain,
    Recorded(Recorded<I, O>),
}

struct Recorded<I, O> {
    graph: Box<dyn Any + Send + Sync>,
    /// What the recording reads and writes.
    inputs: I,
    outputs: O,
    generators: Vec<Generator>,
}

/// A generator that a recording draws from, with the place on the device where the recording finds its state.
struct Generator {
    rng: Rng,
    place: Tensor,
    /// Blocks that one run takes.
    blocks: u64,
}

/// A generator's state while a step is recorded, and its place.
struct Base {
    rng: Rng,
    start: RngState,
    place: Tensor,
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The generators of the step that this thread records.
    static BASES: RefCell<Option<Vec<Base>>> = const { RefCell::new(None) };
}

/// Errors inside of a captured step, which cannot wait for the device.
pub(crate) fn check_wait(op: &'static str) -> Result<()> {
    match IS_INSIDE.get() {
        true => Err(Error::value(
            op,
            "a captured step waits for the device here; return the tensor from the step and read it afterwards",
        )),
        false => Ok(()),
    }
}

/// Where a draw starts: at `state`, or that far from a state that lies on the device, i64 `[3]`: seed, offset, stream.
#[derive(Clone)]
pub(crate) struct Draw {
    pub state: RngState,
    pub base: Option<Tensor>,
}

impl Draw {
    /// The attributes of a kernel that draws.
    pub fn ints(&self, threshold: i64) -> [i64; 4] {
        let RngState { seed, offset, stream } = self.state;
        [seed as i64, offset as i64, stream as i64, threshold]
    }
}

/// Relates `state`, at which `rng` stands, to the place of `rng` if a step is recorded.
pub(crate) fn draw(rng: &Rng, state: RngState) -> Result<Draw> {
    BASES.with_borrow(|bases| {
        let Some(bases) = bases else { return Ok(Draw { state, base: None }) };
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
        Ok(Draw { state: distance, base: Some(base.place.clone()) })
    })
}

/// Runs `f` as a part of a captured step.
fn inside<R>(f: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
            BASES.with_borrow_mut(|bases| *bases = None);
        }
    }
    IS_INSIDE.set(true);
    let _leave = Leave;
    f()
}

impl Device {
    /// A training step, or any other work of one shape, that is recorded and replayed where the device can do so, and
    /// called plainly elsewhere.
    ///
    /// The first run calls `step`. The second calls it once more and records what it enqueues. All later ones replay this:
    /// inputs are copied to where the recording reads them, generators go on from where they stand, and outputs are
    /// copied from where it writes them. What `step` does on the host happens in the first two runs only. Tensors change
    /// in place as they would otherwise: parameters, states of optimizers, their step counts and learning rates. A step
    /// that calls `backward` must also use up or forget the gradients, as [`Optimizer::step`] does. Until the `Step` is
    /// dropped, it keeps the memory of its tensors.
    ///
    /// On every device the inputs must keep their shapes and dtypes, and nothing may wait inside, for the device or for another
    /// thread that uses one of its kind: such a thread may have to wait until the step is recorded.
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
    /// Runs the step. Outputs are outside of the tape. Errors: those of the closure; `Shape` or `Dtype` if the inputs are
    /// not like those of the first run; `Device` if they are elsewhere; `Value` if they are on the tape, or if the
    /// closure waits for the device.
    pub fn run(&mut self, inputs: I) -> Result<O> {
        let signature = self.check(&inputs)?;
        let outputs = match std::mem::replace(&mut self.state, State::New) {
            State::New => {
                let (outputs, generators) = journal(|| self.plain(inputs));
                let outputs = outputs?;
                self.state = State::Warm(generators);
                outputs
            }
            State::Warm(generators) => self.record(inputs, generators)?,
            State::Plain => {
                self.state = State::Plain;
                self.plain(inputs)?
            }
            State::Recorded(recorded) => {
                let outputs = recorded.replay(&self.device, &inputs);
                self.state = State::Recorded(recorded);
                outputs?
            }
        };
        self.signature = Some(signature);
        Ok(outputs)
    }

    /// True once runs are replays of a recording.
    pub fn is_recorded(&self) -> bool {
        matches!(self.state, State::Recorded(_))
    }

    /// What the inputs are like. Errors unless that is as in earlier runs.
    fn check(&self, inputs: &I) -> Result<Vec<(Shape, DType)>> {
        let mut signature = Vec::new();
        inputs.map(&mut |t| {
            let i = signature.len();
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
            Ok(t.clone())
        })?;
        match &self.signature {
            Some(known) if known.len() != signature.len() => {
                let message = format!("{} inputs, the step was captured with {}", signature.len(), known.len());
                Err(Error::shape(OP, message))
            }
            _ => Ok(signature),
        }
    }

    fn plain(&mut self, inputs: I) -> Result<O> {
        let outputs = inside(|| (self.f)(inputs))?;
        outputs.map(&mut |t| Ok(t.detach()))
    }

    /// Records the step and runs the recording.
    fn record(&mut self, inputs: I, generators: Journal) -> Result<O> {
        let own = inputs.map(&mut Tensor::copy)?;
        let mut bases = Vec::new();
        for (rng, _) in generators {
            let place = Tensor::allocate(OP, &Shape::from(3), DType::I64, &self.device)?;
            bases.push(Base { start: rng.state(), rng, place });
        }
        let mut outputs = None;
        let starts: Vec<_> = bases.iter().map(|base| (base.rng.clone(), base.start, base.place.clone())).collect();
        let mut bases = Some(bases);
        let f = &mut self.f;
        let graph = self.device.backend().capture(&mut || {
            BASES.set(bases.take());
            outputs = Some(inside(|| f(own.map(&mut |t| Ok(t.clone()))?))?);
            Ok(())
        })?;
        let (Some(graph), Some(outputs)) = (graph, outputs) else {
            self.state = State::Plain;
            return self.plain(inputs);
        };
        let outputs = outputs.map(&mut |t| Ok(t.detach()))?;
        let blocks = |rng: &Rng, start: RngState| rng.state().offset.wrapping_sub(start.offset);
        let generators: Vec<_> = starts
            .into_iter()
            .map(|(rng, start, place)| {
                let blocks = blocks(&rng, start);
                // Replaying takes them again.
                rng.set_state(start);
                Generator { rng, place, blocks }
            })
            .collect();
        let recorded = Recorded { graph, inputs: own, outputs, generators };
        let outputs = recorded.replay(&self.device, &inputs);
        self.state = State::Recorded(recorded);
        outputs
    }
}

impl<I: Tensors, O: Tensors> Recorded<I, O> {
    fn replay(&self, device: &Device, inputs: &I) -> Result<O> {
        let mut own = Vec::new();
        self.inputs.map(&mut |t| {
            own.push(t.clone());
            Ok(t.clone())
        })?;
        let mut own = own.iter();
        inputs.map(&mut |t| {
            own.next().map_or(Ok(()), |own| own.copy_(t))?;
            Ok(t.clone())
        })?;
        for Generator { rng, place, blocks } in &self.generators {
            let RngState { seed, offset, stream } = rng.state();
            place.upload(&[seed, offset, stream].map(u64::to_ne_bytes).concat())?;
            rng.set_state(RngState { seed, offset: offset.wrapping_add(*blocks), stream });
        }
        device.backend().replay(&*self.graph)?;
        self.outputs.map(&mut Tensor::copy)
    }
}
