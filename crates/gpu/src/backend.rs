//! The [`Backend`] of a GPU: memory, copies, calls and recordings.

use crate::driver::{Handle, ccl};
use crate::launch::device::Gpu;
use crate::launch::operands::{block, start_of};
use crate::memory::block::{Block, Later};
use crate::step::Recording;
use crate::{ops, step, vendor};
use isograd_core::backend::Mark;
use isograd_core::collective::{Collective, Collectives, Opaque};
use isograd_core::fused::AnyFused;
use isograd_core::{
    Backend, Blas, Call, Checks, DType, Determinism, Error, Foreign, Kernel, Memory, MemoryStats, Operand, Precision,
    Result, Space,
};
use std::any::{Any, TypeId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Backend for Gpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let _turn = self.enter();
        if let Some(block) = step::allocate(self, bytes) {
            return Ok(Box::new(block));
        }
        Ok(Box::new(Block::own(&self.pool, self.pool.take(bytes)?)))
    }

    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        let _turn = self.enter();
        let block = self.own(memory)?;
        if bytes.len() > block.bytes {
            return Err(Error::backend("upload", format!("{} bytes do not fit", bytes.len())));
        }
        self.touch(block);
        if bytes.is_empty() || step::upload(self, block, bytes)? {
            return Ok(());
        }
        self.driver().upload(block.address()?, bytes)
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let _turn = self.enter();
        step::before_wait(self, "download")?;
        let block = self.own(memory)?;
        if offset.saturating_add(bytes.len()) > block.bytes {
            return Err(Error::backend("download", format!("{} bytes are not there", bytes.len())));
        }
        if bytes.is_empty() {
            return self.status.check();
        }
        self.status.check_and_download(block.address()? + offset as u64, bytes)
    }

    fn space(&self) -> Option<Space> {
        self.driver().space()
    }

    fn adopt(&self, foreign: Foreign) -> Result<Box<dyn Memory>> {
        if self.driver().space().is_none() {
            return Err(Error::unsupported("adopt", "the device adopts no memory of other libraries"));
        }
        Ok(Box::new(Block::adopt(&self.pool, foreign)))
    }

    fn address(&self, memory: &dyn Memory) -> Result<u64> {
        let _turn = self.enter();
        step::before_wait(self, "address")?;
        if self.driver().space().is_none() {
            return Err(Error::unsupported("address", "other libraries cannot read the device's memory"));
        }
        let block = self.own(memory)?;
        let is_lent =
            |later: &Arc<Later>| self.lent.lock().iter().any(|lent| std::ptr::eq(lent.as_ptr(), Arc::as_ptr(later)));
        if block.of_step().is_some_and(is_lent) {
            return Err(Error::value(
                "address",
                "the result of a captured step moves at its next run; take a `copy` of it",
            ));
        }
        block.address()
    }

    fn stream(&self) -> Option<u64> {
        self.driver().stream()
    }

    fn follow(&self, stream: Option<u64>) -> Result<()> {
        let _turn = self.enter();
        step::before_wait(self, "follow")?;
        match stream {
            Some(stream) => self.driver().lead(stream),
            None => self.driver().synchronize(),
        }
    }

    fn run(&self, call: &Call<'_>) -> Result<()> {
        let _turn = self.enter();
        for operand in call.inputs.iter().chain(call.outputs) {
            self.touch(self.own(operand.memory)?);
        }
        // A copy and a gather move bits, whatever they mean.
        let moves_bits = matches!(call.kernel, Kernel::Copy | Kernel::Gather);
        let is_f64 = |operand: &Operand<'_>| operand.dtype == DType::F64;
        if !moves_bits && !self.driver().limits().has_f64 && call.inputs.iter().chain(call.outputs).any(is_f64) {
            return Err(Error::unsupported(call.op, "the device has no f64"));
        }
        if step::call(self, call)? || vendor::try_run(self, call)? { Ok(()) } else { ops::run(self, call) }
    }

    fn supports(&self, fused: TypeId, dtype: DType) -> bool {
        ops::supports(self, fused, dtype)
    }

    fn has_room(&self, fused: &dyn AnyFused, dtype: DType) -> bool {
        ops::has_room(self, fused, dtype)
    }

    fn set_matmul_precision(&self, precision: Precision) {
        self.set_precision(precision);
    }

    fn set_blas(&self, blas: Blas) {
        self.is_blas_off.store(blas == Blas::Own, Ordering::Relaxed);
    }

    fn set_checks(&self, checks: Checks) {
        self.is_checked.store(checks == Checks::AtOnce, Ordering::Relaxed);
    }

    fn set_determinism(&self, determinism: Determinism) {
        self.is_deterministic.store(determinism == Determinism::SameBits, Ordering::Relaxed);
    }

    fn synchronize(&self) -> Result<()> {
        let _turn = self.enter();
        step::before_wait(self, "synchronize")?;
        self.status.check()?;
        self.driver().synchronize()
    }

    fn mark(&self) -> Result<Mark> {
        if !self.records() {
            step::before_wait(self, "time")?;
        }
        Ok(Box::new(self.driver().record()?))
    }

    fn between(&self, from: &Mark, to: &Mark) -> Result<f64> {
        match [from, to].map(|mark| mark.downcast_ref::<Handle>()) {
            [Some(from), Some(to)] => self.driver().elapsed(from, to),
            _ => Err(Error::backend("time", "the moment is of another backend")),
        }
    }

    fn put_off(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if !self.driver().records() || Gpu::has_any_turn() {
            return f();
        }
        let _turn = self.turn.write();
        step::put_off(self, f)
    }

    fn capture(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        if Gpu::has_any_turn() {
            return Err(Error::value("capture", "a step is captured inside of another"));
        }
        let _turn = self.turn.write();
        // Work that still runs may use memory that is written aside.
        self.status.check()?;
        self.driver().synchronize()?;
        self.status.prepare()?;
        // The new recording keeps addresses of results of other recordings, whose replays must not write there.
        for later in self.lent.lock().iter().filter_map(Weak::upgrade) {
            later.leave(&self.pool)?;
        }
        // Only replays fill the memory that a recording allocates.
        if self.driver().limits().is_coherent || self.driver().limits().has_shared_words {
            self.partials.starts(&self.pool)?;
        }
        step::capture(self, f)
    }

    fn lend_result(&self, memory: &dyn Memory) -> bool {
        let block = memory.as_any().downcast_ref::<Block>().filter(|block| block.is_of(&self.pool));
        let Some(later) = block.and_then(Block::of_step) else { return false };
        self.lent.lock().push(Arc::downgrade(later));
        true
    }

    fn reclaim_result(&self, memory: &dyn Memory, is_held: bool) -> Result<Option<Box<dyn Memory>>> {
        if Gpu::has_any_turn() {
            return Err(Error::value("capture", "a captured step runs inside of another"));
        }
        let Some(later) = block(memory)?.of_step() else { return Ok(None) };
        if is_held {
            // No other thread is between the look at an address and its use.
            let _turn = self.turn.write();
            later.leave(&self.pool)?;
        }
        let Some(own) = later.taken_back() else { return Ok(None) };
        let mut lent = self.lent.lock();
        lent.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(later)));
        lent.push(Arc::downgrade(&own));
        Ok(Some(Box::new(Block::later(&self.pool, own))))
    }

    fn explain(&self, recording: &(dyn Any + Send + Sync)) -> Option<String> {
        recording.downcast_ref::<Recording>().map(|recording| recording.explanation.clone())
    }

    fn replay(&self, recording: &(dyn Any + Send + Sync)) -> Result<()> {
        let _turn = self.enter();
        let recording = recording.downcast_ref::<Recording>().filter(|recording| recording.memory.is_of(&self.pool));
        let recording = recording.ok_or_else(|| Error::backend("capture", "the step is of another device"))?;
        self.driver().replay(&recording.graph)
    }

    fn collectives(&self) -> Option<&dyn Collectives> {
        self.driver().ccl().map(|_| self as _)
    }

    fn launch_count(&self) -> Option<u64> {
        Some(self.launched.load(Ordering::Relaxed))
    }

    fn limit_memory(&self, bytes: Option<usize>) -> Result<()> {
        let _turn = self.enter();
        self.pool.limit(bytes);
        Ok(())
    }

    fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }

    fn reset_peak(&self) {
        self.pool.reset_peak();
    }
}

impl Gpu {
    /// Notes that the calls that this thread records or puts off, if any, use memory from outside of them.
    fn touch(&self, block: &Block) {
        if self.turn_of_thread().is_some()
            && let Ok(address) = block.address()
        {
            self.pool.touch(address);
        }
    }

    fn ccl(&self) -> Result<&dyn ccl::Library> {
        let missing = || Error::unsupported("collective", "the device has no library of collectives");
        self.driver().ccl().ok_or_else(missing)
    }
}

impl Collectives for Gpu {
    fn identity(&self) -> Result<Vec<u8>> {
        self.ccl()?.identity()
    }

    fn join(&self, identity: &[u8], rank: usize, size: usize, timeout: Duration) -> Result<Opaque> {
        self.ccl()?.join(identity, rank, size, timeout)
    }

    fn start(
        &self,
        member: &Opaque,
        collective: Collective,
        input: Operand<'_>,
        output: Operand<'_>,
    ) -> Result<Opaque> {
        let _turn = self.enter();
        step::seal(self)?;
        for operand in [&input, &output] {
            self.touch(self.own(operand.memory)?);
        }
        let part = |operand: &Operand<'_>| Ok::<_, Error>((start_of(operand)?, operand.layout.shape().numel()));
        let operands = ccl::Operands { dtype: input.dtype, input: part(&input)?, output: part(&output)? };
        self.ccl()?.start(member, collective, &operands)
    }

    fn wait(&self, member: &Opaque, mark: &Opaque) -> Result<()> {
        let _turn = self.enter();
        step::seal(self)?;
        self.ccl()?.wait(member, mark)
    }

    fn is_done(&self, member: &Opaque, mark: &Opaque) -> Result<bool> {
        self.ccl()?.is_done(member, mark)
    }

    fn abort(&self, member: &Opaque) {
        if let Ok(library) = self.ccl() {
            library.abort(member);
        }
    }
}
