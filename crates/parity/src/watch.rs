//! Watched devices, with guard zones around every buffer. They can hide fused kernels.

use isograd_core::{
    Backend, Blas, Call, Checks, DType, Determinism, Device, Error, Memory, MemoryStats, Operand, Precision, Provider,
    Result, Space,
};
use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of a guard zone, before and after a buffer. It keeps the buffer's alignment.
const GUARD: usize = 256;
const PATTERN: u8 = 0xA5;

/// The kernels that a watched device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// All kernels of the device.
    Any,
    /// No fused kernels: composites run.
    Composite,
}

/// A device with guarded memory, over another device.
pub struct Watched {
    device: Device,
    state: Arc<State>,
}

struct State {
    under: Device,
    kernels: Kernels,
    /// Descriptions of writes to guard zones.
    damage: Mutex<Vec<String>>,
    asked: AtomicUsize,
    live: AtomicUsize,
}

impl Watched {
    /// A watched device over `device`.
    pub fn new(device: &Device, kernels: Kernels) -> Watched {
        let state = Arc::new(State {
            under: device.clone(),
            kernels,
            damage: Mutex::default(),
            asked: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
        });
        Watched { device: Device::from_backend(device.name(), Arc::new(Watch(state.clone()))), state }
    }

    /// The watched device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The number of requests for fused kernels since the last call.
    pub fn asked(&self) -> usize {
        self.state.asked.swap(0, Ordering::Relaxed)
    }

    /// Returns an error if a guard zone of a dropped buffer was written. All tensors of this device must have been dropped.
    pub fn check(&self) -> Result<(), String> {
        let damage = std::mem::take(&mut *self.state.damage.lock().unwrap_or_else(|e| e.into_inner()));
        match (damage.first(), self.state.live.load(Ordering::Relaxed)) {
            (Some(first), _) => Err(first.clone()),
            (None, 0) => Ok(()),
            (None, live) => Err(format!("{live} buffers are still there")),
        }
    }
}

/// A buffer between its guard zones.
struct Guarded {
    state: Arc<State>,
    inner: Box<dyn Memory>,
    bytes: usize,
    written: Mutex<String>,
}

impl Memory for Guarded {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.state.live.fetch_sub(1, Ordering::Relaxed);
        let mut zones = vec![0; GUARD];
        for (from, which) in [(0, "before"), (GUARD + self.bytes, "behind")] {
            // A failure here also fails the call that reads results.
            if self.state.under.backend().download(&*self.inner, from, &mut zones).is_err() {
                return;
            }
            let changed = if from == 0 {
                zones.iter().rposition(|&b| b != PATTERN).map(|i| GUARD - i)
            } else {
                zones.iter().position(|&b| b != PATTERN).map(|i| i + 1)
            };
            if let Some(distance) = changed {
                let written = self.written.lock().unwrap_or_else(|e| e.into_inner());
                let message = format!("{written} wrote {distance} bytes {which} its output of {} bytes", self.bytes);
                self.state.damage.lock().unwrap_or_else(|e| e.into_inner()).push(message);
            }
        }
    }
}

/// The backend of a watched device.
struct Watch(Arc<State>);

fn guarded(memory: &dyn Memory) -> Result<&Guarded> {
    let found = memory.as_any().downcast_ref();
    found.ok_or_else(|| Error::backend("memory", "the memory belongs to another device"))
}

impl Watch {
    fn under(&self) -> &dyn Backend {
        self.0.under.backend()
    }
}

impl Backend for Watch {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let inner = self.under().allocate(bytes + 2 * GUARD)?;
        self.under().upload(&*inner, &vec![PATTERN; bytes + 2 * GUARD])?;
        self.0.live.fetch_add(1, Ordering::Relaxed);
        let written = Mutex::new("nothing".to_string());
        Ok(Box::new(Guarded { state: self.0.clone(), inner, bytes, written }))
    }

    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        self.under().upload(&*guarded(memory)?.inner, &[&[PATTERN; GUARD], bytes].concat())
    }

    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.under().download(&*guarded(memory)?.inner, GUARD + offset, bytes)
    }

    fn space(&self) -> Option<Space> {
        self.under().space()
    }

    fn address(&self, memory: &dyn Memory) -> Result<u64> {
        Ok(self.under().address(&*guarded(memory)?.inner)? + GUARD as u64)
    }

    fn stream(&self) -> Option<u64> {
        self.under().stream()
    }

    fn follow(&self, stream: Option<u64>) -> Result<()> {
        self.under().follow(stream)
    }

    fn run(&self, call: &Call<'_>) -> Result<()> {
        let layouts = |operands: &[Operand<'_>]| -> Vec<_> {
            operands.iter().map(|o| o.layout.shift(GUARD / o.dtype.size())).collect()
        };
        let (inputs, outputs) = (layouts(call.inputs), layouts(call.outputs));
        for output in call.outputs {
            let name = format!("{} ({})", call.op, call.kernel);
            *guarded(output.memory)?.written.lock().unwrap_or_else(|e| e.into_inner()) = name;
        }
        fn within<'a>(operands: &[Operand<'a>], layouts: &'a [isograd_core::Layout]) -> Result<Vec<Operand<'a>>> {
            let pairs = operands.iter().zip(layouts);
            pairs
                .map(|(o, layout)| Ok(Operand { memory: &*guarded(o.memory)?.inner, layout, dtype: o.dtype }))
                .collect()
        }
        let (inputs, outputs) = (within(call.inputs, &inputs)?, within(call.outputs, &outputs)?);
        self.under().run(&Call { inputs: &inputs, outputs: &outputs, ..*call })
    }

    fn supports(&self, fused: TypeId, dtype: DType) -> bool {
        let is_there = self.under().supports(fused, dtype);
        self.0.asked.fetch_add(is_there.into(), Ordering::Relaxed);
        is_there && self.0.kernels == Kernels::Any
    }

    fn set_matmul_precision(&self, precision: Precision) {
        self.under().set_matmul_precision(precision);
    }

    fn set_blas(&self, blas: Blas) {
        self.under().set_blas(blas);
    }

    fn set_checks(&self, checks: Checks) {
        self.under().set_checks(checks);
    }

    fn set_determinism(&self, determinism: Determinism) {
        self.under().set_determinism(determinism);
    }

    fn synchronize(&self) -> Result<()> {
        self.under().synchronize()
    }

    fn launch_count(&self) -> Option<u64> {
        self.under().launch_count()
    }

    fn memory(&self) -> MemoryStats {
        self.under().memory()
    }

    fn reset_peak(&self) {
        self.under().reset_peak();
    }
}

/// A device of the same kind with memory and queue of its own, or the device itself if its backend opens no other.
pub fn private(device: &Device) -> Result<Device> {
    match provider(device) {
        Some((provider, ordinal)) => Ok(Device::from_backend(device.name(), (provider.open)(ordinal)?)),
        None => Ok(device.clone()),
    }
}

/// The provider of a device, and the device's ordinal.
pub fn provider(device: &Device) -> Option<(&'static Provider, usize)> {
    let (kind, ordinal) = device.name().split_once(':').unwrap_or((device.name(), "0"));
    let provider = isograd_core::inventory::iter::<Provider>.into_iter().find(|p| p.name == kind);
    provider.zip(ordinal.parse().ok())
}
