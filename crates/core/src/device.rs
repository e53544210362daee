//! Devices: found by name, opened once, compared by identity.

use crate::capture::check_wait;
use crate::{Backend, Blas, Checks, Determinism, Error, Kind, MemoryStats, Precision, Result};
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A kind of device that a backend crate offers. A linked crate registers itself with `inventory::submit!`.
pub struct Provider {
    /// The name before the colon: `"cpu"`, `"cuda"`.
    pub name: &'static str,
    /// The priority: [`Device::best`] prefers the highest.
    pub priority: i32,
    /// Lists the present devices, one description each. An error names the driver or library that was not found.
    pub list: fn() -> Result<Vec<DeviceInfo>>,
    /// Opens device `ordinal`.
    pub open: fn(ordinal: usize) -> Result<Arc<dyn Backend>>,
}

inventory::collect!(Provider);

/// The description of a device before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The string that selects it, such as `"cpu"`.
    pub name: String,
    /// The hardware in words.
    pub description: String,
    /// Driver and compiler with their versions.
    pub driver: String,
    /// Bytes of the device's own memory; `None` if it uses the host's.
    pub memory: Option<usize>,
    /// False if the hardware is the host's own processor.
    pub is_accelerator: bool,
}

/// A device that holds tensors and runs kernels. Cheap to clone; the same string gives the same device.
#[derive(Clone)]
pub struct Device(Arc<Opened>);

struct Opened {
    name: String,
    backend: Arc<dyn Backend>,
}

static OPENED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn providers() -> Vec<&'static Provider> {
    let mut all: Vec<_> = inventory::iter::<Provider>.into_iter().collect();
    all.sort_by_key(|p| (-p.priority, p.name));
    all
}

static FEW_LAUNCHES: AtomicBool = AtomicBool::new(false);

impl Device {
    /// The CPU, which is always present if isograd-cpu is linked.
    pub fn cpu() -> Result<Device> {
        "cpu".parse()
    }

    /// The first accelerator that is compiled in and present, in the order CUDA, HIP, OpenCL; the CPU if there is none. Errors: `Device` if
    /// there is no device, with the reason of the last backend, the CPU's.
    pub fn best() -> Result<Device> {
        let (mut all, mut why) = (Vec::new(), None);
        for provider in providers() {
            match (provider.list)() {
                Ok(devices) => all.extend(devices),
                Err(error) => why = Some(error),
            }
        }
        if let Some(info) = all.iter().find(|info| info.is_accelerator).or(all.last()) {
            return info.name.parse();
        }
        if let Some(error) = why {
            return Err(error);
        }
        Err(Error::device("device", "no backend is compiled in; enable a feature such as `cpu`"))
    }

    /// Every compiled-in backend with its devices, or with the reason why there are none. The preferred backend is first.
    pub fn list() -> Vec<(&'static str, Result<Vec<DeviceInfo>>)> {
        providers().into_iter().map(|p| (p.name, (p.list)())).collect()
    }

    /// Says that devices opened from now on launch each kernel only a few times, so that optimising kernels takes longer than it
    /// saves. PoCL's compiler then does not optimise, unless `ISOGRAD_OPENCL_OPTIONS` is set, even if it is empty.
    pub fn expect_few_launches() {
        FEW_LAUNCHES.store(true, Ordering::Relaxed);
    }

    /// True after [`expect_few_launches`](Device::expect_few_launches).
    pub fn few_launches() -> bool {
        FEW_LAUNCHES.load(Ordering::Relaxed)
    }

    /// A device over any backend, for tests and for backends outside of this project.
    pub fn from_backend(name: impl Into<String>, backend: Arc<dyn Backend>) -> Device {
        Device(Arc::new(Opened { name: name.into(), backend }))
    }

    /// The string that selects this device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The backend that runs this device's calls.
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Waits until all enqueued work has run, and reports its errors.
    pub fn synchronize(&self) -> Result<()> {
        check_wait("synchronize")?;
        self.backend().synchronize()
    }

    /// Seconds that the device takes for the work that `f` enqueues, after waiting for it. On a GPU, the time is measured by the
    /// device's clock: work already in the queue is not counted, and hides the time that the host takes to enqueue. Elsewhere it is
    /// measured by the host's clock. Errors: the errors of `f`, and `Backend`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// fn seconds(x: &Tensor) -> Result<f64> {
    ///     x.device().time(|| x.exp().map(drop))
    /// }
    /// ```
    pub fn time(&self, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
        check_wait("time")?;
        let backend = self.backend();
        let from = backend.mark()?;
        f()?;
        backend.between(&from, &backend.mark()?)
    }

    /// Sets the precision of this device's matrix products; initially [`Precision::Exact`]. A device that has one precision ignores
    /// it.
    ///
    /// ```
    /// # use isograd_core::{Device, Precision};
    /// fn prefer_speed(device: &Device) {
    ///     device.set_matmul_precision(Precision::Tf32);
    /// }
    /// ```
    pub fn set_matmul_precision(&self, precision: Precision) {
        self.backend().set_matmul_precision(precision);
    }

    /// Sets the source of the kernels for this device's matrix products. The initial value is `ISOGRAD_BLAS`, `vendor` or `own`. A
    /// device without a vendor's library ignores it.
    pub fn set_blas(&self, blas: Blas) {
        self.backend().set_blas(blas);
    }

    /// Sets when bad indices and values are errors. The initial value is [`Checks::AtOnce`] with `ISOGRAD_CHECKED=1` and
    /// [`Checks::Later`] with `ISOGRAD_CHECKED=0`; by default `AtOnce` in debug builds only. The CPU always checks at once.
    pub fn set_checks(&self, checks: Checks) {
        self.backend().set_checks(checks);
    }

    /// Sets whether this device's results have the same bits in every run, as they have initially. With [`Determinism::AnyOrder`], CUDA
    /// devices of compute capability 9.0 and later add in any order when they scatter sums of f32, f16 and bf16, and round to the
    /// tensor's dtype after each addition. This concerns [`Tensor::scatter_add`], [`Tensor::index_add`], and gradients of [`Tensor::gather`] and similar
    /// ops. Other devices ignore it.
    ///
    /// [`Tensor::scatter_add`]: crate::Tensor::scatter_add
    /// [`Tensor::index_add`]: crate::Tensor::index_add
    /// [`Tensor::gather`]: crate::Tensor::gather
    pub fn set_determinism(&self, determinism: Determinism) {
        self.backend().set_determinism(determinism);
    }

    /// Limits the memory of this device's tensors, as if it had no more: an allocation beyond it is an `OutOfMemory` error. `None` ends the
    /// limit. Errors: `Unsupported` for a backend that cannot.
    pub fn limit_memory(&self, bytes: Option<usize>) -> Result<()> {
        self.backend().limit_memory(bytes)
    }

    /// Bytes held by this device's tensors.
    pub fn memory(&self) -> MemoryStats {
        self.backend().memory()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(s: &str) -> Result<Device> {
        // A device that is open is not looked for again, which takes system calls.
        if let Some(device) = OPENED.lock().iter().find(|device| device.name() == s) {
            return Ok(device.clone());
        }
        let (kind, ordinal) = match s.split_once(':') {
            None => (s, 0),
            Some((kind, n)) => (kind, n.parse().map_err(|_| unknown(s, "the part after the colon is not a number"))?),
        };
        let provider = providers().into_iter().find(|p| p.name == kind).ok_or_else(|| {
            let names: Vec<_> = providers().iter().map(|p| p.name).collect();
            unknown(s, &format!("this program was built with: {}", names.join(", ")))
        })?;
        let available = (provider.list)()?;
        let info =
            available.get(ordinal).ok_or_else(|| unknown(s, &format!("{kind} has {} device(s)", available.len())))?;
        let mut opened = OPENED.lock();
        if let Some(device) = opened.iter().find(|d| d.name() == info.name) {
            return Ok(device.clone());
        }
        let device = Device::from_backend(info.name.clone(), (provider.open)(ordinal)?);
        opened.push(device.clone());
        Ok(device)
    }
}

fn unknown(name: &str, why: &str) -> Error {
    Error::new(Kind::Device, "device", format!("there is no device {name:?}; {why}"))
}
