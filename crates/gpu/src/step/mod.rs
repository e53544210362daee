//! Captured steps. The calls of a step are put off until all are known: then passes change the program that they are, its memory is
//! placed, its kernels are compiled side by side, and it is launched. The first run of a step is no more than that; in the second one the
//! driver records what is launched.

mod ahead;
mod arena;
mod explain;
mod passes;
mod plans;
mod program;

use crate::driver::Handle;
use crate::launch::device::{Gpu, Turn};
use crate::memory::block::Block;
use crate::memory::{pool, status};
use crate::ops::elementwise::group;
use crate::{ops, vendor};
use arena::{Placed, Reuse, keep, settle};
use isograd_core::backend::as_part_of;
use isograd_core::{Call, Error, Kernel, Operand, Result};
use program::{Entry, KeptOperand, Program, Reduction, Work};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

/// A recording, and the memory that it keeps.
pub struct Recording {
    // In this order: the graph goes before the memory that it uses.
    pub graph: Handle,
    _slots: status::Kept,
    pub memory: pool::Hold,
    /// The program in words.
    pub explanation: String,
}

/// A step that is being recorded, or run for the first time.
#[derive(Default)]
struct Recorder {
    /// Calls that are put off; `None` once calls are launched as they come.
    program: Option<Program>,
    /// Whether the driver records.
    is_begun: bool,
    /// Memory of temporary tensors.
    buffers: Vec<pool::Buffer>,
    explanation: String,
}

thread_local! {
    /// The step that the thread records.
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

/// Calls `f` with the program if calls of this thread are put off.
fn program<R>(gpu: &Gpu, f: impl FnOnce(&mut Program) -> R) -> Option<R> {
    gpu.turn_of_thread()?;
    RECORDER.with_borrow_mut(|recorder| recorder.program.as_mut().map(f))
}

/// The program, if calls of this thread were put off. They are no more.
fn take(gpu: &Gpu) -> Option<Program> {
    gpu.turn_of_thread()?;
    RECORDER.with_borrow_mut(|recorder| recorder.program.take())
}

/// Memory of the step, if calls are put off.
pub fn allocate(gpu: &Gpu, bytes: usize) -> Option<Block> {
    program(gpu, |program| Block::later(&gpu.pool, program.allocate(bytes)))
}

/// Puts off a copy from the host; false if it must be made now.
pub fn upload(gpu: &Gpu, block: &Block, bytes: &[u8]) -> Result<bool> {
    let done = program(gpu, |program| {
        program.upload(block.place(&program.memory)?, bytes);
        Ok(true)
    });
    done.unwrap_or(Ok(false))
}

/// Puts off a call; false if it must be launched now.
pub fn call(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    let done = program(gpu, |program| program.call(call).map(|()| true));
    done.unwrap_or(Ok(false))
}

/// Launches all that was put off, and puts off nothing more: what comes needs addresses.
pub fn seal(gpu: &Gpu) -> Result<()> {
    if !gpu.records() {
        return launch_now(gpu);
    }
    let Some(pending) = take(gpu) else { return Ok(()) };
    let (buffers, placed) =
        launch_all(gpu, &pending, Reuse::No, Kernels::New).inspect_err(|_| drop(keep(&pending, &gpu.pool)))?;
    // The rest of the step may use this memory again.
    drop(buffers);
    let explanation =
        explain::text(&pending, &passes::Report::default(), &placed, Some("a collective needs addresses"));
    RECORDER.with_borrow_mut(|recorder| recorder.explanation = explanation);
    Ok(())
}

/// Before a wait for the device: launches what was put off. While a step is recorded the wait is an error.
pub fn before_wait(gpu: &Gpu, op: &'static str) -> Result<()> {
    match program(gpu, |_| ()) {
        None => Ok(()),
        Some(()) if !gpu.records() => launch_now(gpu),
        Some(()) => Err(Error::value(op, "a captured step waits for the device here, which has computed nothing yet")),
    }
}

/// Launches what was put off. Later calls are launched as they come.
fn launch_now(gpu: &Gpu) -> Result<()> {
    let Some(mut program) = take(gpu) else { return Ok(()) };
    let form = plans::Form::of(&program).filter(|_| gpu.fuses.load(Ordering::Relaxed));
    let is_planned = form.as_ref().is_some_and(|form| plans::take(gpu, form, &mut program));
    if !is_planned {
        let before = program.memory.len();
        fuse(gpu, &mut program);
        form.into_iter().for_each(|form| plans::keep(gpu, form, &program, before));
    }
    let kernels = if is_planned { Kernels::Known } else { Kernels::New };
    let launched = launch_all(gpu, &program, Reuse::Yes, kernels).inspect_err(|_| drop(keep(&program, &gpu.pool)));
    // Later work of the queue may use the memory of temporary tensors again.
    launched.map(drop)
}

/// Puts off the calls of `f` until it ends, also by an error or a panic.
pub fn put_off(gpu: &Gpu, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    RECORDER.set(Recorder { program: Some(Program::default()), ..Recorder::default() });
    gpu.pool.begin_scope(pool::Calls::PutOff);
    let (done, launched) = gpu.in_turn(Turn::PutsOff, || {
        let done = catch_unwind(AssertUnwindSafe(f));
        (done, launch_now(gpu))
    });
    drop(gpu.pool.end_scope());
    RECORDER.take();
    done.unwrap_or_else(|panic| resume_unwind(panic)).and(launched)
}

/// Records the work of `f`; `None` if the device records nothing.
pub fn capture(gpu: &Gpu, f: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Any + Send + Sync>>> {
    if !gpu.driver().records() {
        return Ok(None);
    }
    gpu.pool.begin_scope(pool::Calls::Recorded);
    RECORDER.set(Recorder { program: Some(Program::default()), ..Recorder::default() });
    // Whatever happens in the closure, the queue must run again.
    let done = gpu.in_turn(Turn::Records, || catch_unwind(AssertUnwindSafe(|| f().and_then(|()| finish(gpu)))));
    let Recorder { program, is_begun, buffers, explanation } = RECORDER.take();
    let graph =
        if is_begun { gpu.driver().end_capture() } else { Err(Error::backend("capture", "nothing is recorded")) };
    // Tensors that outlive a failed step have memory, of unspecified content.
    let kept = program.map_or(Ok(0), |program| keep(&program, &gpu.pool));
    let (slots, memory) = (gpu.status.keep(), gpu.pool.end_scope());
    drop(buffers);
    done.unwrap_or_else(|panic| resume_unwind(panic)).and(kept)?;
    Ok(Some(Box::new(Recording { graph: graph?, _slots: slots, memory, explanation })))
}

/// Records the program.
fn finish(gpu: &Gpu) -> Result<()> {
    let Some(mut program) = take(gpu) else { return Ok(()) };
    let report = fuse(gpu, &mut program);
    let settled = launch_all(gpu, &program, Reuse::Yes, Kernels::New).inspect_err(|_| drop(keep(&program, &gpu.pool)));
    let (buffers, placed) = settled?;
    let explanation = explain::text(&program, &report, &placed, None);
    RECORDER.with_borrow_mut(|recorder| {
        recorder.buffers = buffers;
        recorder.explanation = explanation;
    });
    Ok(())
}

fn fuse(gpu: &Gpu, program: &mut Program) -> passes::Report {
    match gpu.fuses.load(Ordering::Relaxed) {
        true => passes::run(program, gpu.driver().limits()),
        false => passes::Report::default(),
    }
}

/// Whether the kernels of a program may have to be compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    New,
    Known,
}

/// Places the memory of a program, compiles its kernels, and launches it, or has the driver record it.
fn launch_all(gpu: &Gpu, program: &Program, reuse: Reuse, kernels: Kernels) -> Result<(Vec<pool::Buffer>, Placed)> {
    let settled = settle(program, &gpu.pool, reuse)?;
    if kernels == Kernels::New {
        ahead::compile(gpu, program);
    }
    if gpu.records() {
        if !gpu.driver().begin_capture()? {
            return Err(Error::backend("capture", "the device does not begin to record"));
        }
        RECORDER.with_borrow_mut(|recorder| recorder.is_begun = true);
    }
    for entry in &program.entries {
        as_part_of(entry.whole, || launch(gpu, program, entry))?;
    }
    Ok(settled)
}

fn launch(gpu: &Gpu, program: &Program, entry: &Entry) -> Result<()> {
    let blocks = |parts: &[KeptOperand]| {
        parts.iter().map(|part| program.block(part, &gpu.pool)).collect::<SmallVec<[Block; 8]>>()
    };
    let (read, written) = (blocks(&entry.inputs), blocks(&entry.outputs));
    let inputs = operands(&entry.inputs, &read);
    let outputs = operands(&entry.outputs, &written);
    match &entry.work {
        Work::Upload(bytes) => gpu.driver().upload(written[0].address()?, bytes),
        Work::Call { kernel, ints, floats } => {
            let (kernel, inputs, outputs) = (kernel.kernel(), &inputs[..], &outputs[..]);
            let call = Call { op: entry.op, kernel, inputs, outputs, ints, floats };
            if vendor::try_run(gpu, &call)? { Ok(()) } else { ops::run(gpu, &call) }
        }
        Work::Reduce(Reduction { kind, dims, layouts: [x, y] }) => {
            let inputs = [Operand { layout: x, ..inputs[0] }];
            let outputs = [Operand { layout: y, ..outputs[0] }];
            let (inputs, outputs, ints) = (&inputs[..], &outputs[..], &[*dims as i64][..]);
            ops::run(gpu, &Call { op: entry.op, kernel: Kernel::Reduce(*kind), inputs, outputs, ints, floats: &[] })
        }
        Work::Group(group) => group::run(gpu, entry.op, group, &inputs, &outputs),
    }
}

fn operands<'a>(parts: &'a [KeptOperand], blocks: &'a [Block]) -> SmallVec<[Operand<'a>; 8]> {
    let operand =
        |(part, memory): (&'a KeptOperand, &'a Block)| Operand { memory, layout: &part.layout, dtype: part.dtype };
    parts.iter().zip(blocks).map(operand).collect()
}
