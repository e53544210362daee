//! The kernels of a step are compiled before it is launched, on all cores.
//!
//! Which ones they are is known by launching the step on a device that runs nothing: it has the limits of the true one and asks the
//! same libraries, so that the host code chooses the same kernels.

use super::{Program, launch};
use crate::driver::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, TileMap, TileView, blas, dnn};
use crate::launch::device::Gpu;
use isograd_core::Result;
use parking_lot::Mutex;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, available_parallelism, scope};
use std::time::{Duration, Instant};

/// Compilers at the same time: each takes some hundreds of megabytes.
const MOST_THREADS: usize = 32;
/// A compilation that takes longer is announced.
const PATIENCE: Duration = Duration::from_secs(1);
/// From one made-up allocation to the next.
const APART: Address = 1 << 40;

/// Compiles what the entries of a program launch. An error comes again when they are launched.
pub fn compile(gpu: &Gpu, program: &Program) {
    let started = Instant::now();
    let before = gpu.programs.compiled();
    let driver = &*gpu.pool.driver;
    let found = Arc::new(Mutex::new(Vec::new()));
    let scout = Scout { driver: gpu.pool.driver.clone(), next: AtomicU64::new(APART), found: found.clone() };
    let scout = gpu.like(Arc::new(scout));
    let most = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let (queue, sources) = mpsc::channel::<String>();
    let (end, ended) = mpsc::channel::<()>();
    let sources = Mutex::new(sources);
    let work = |end: mpsc::Sender<()>| {
        let next = || sources.lock().recv();
        while let Ok(source) = next() {
            // A failure is left to the launch, which names the op.
            let _ = gpu.programs.of_text(driver, &source);
        }
        drop(end);
    };
    scope(|scope| {
        // Dropped here whatever happens: threads end with their queue.
        let (queue, end) = (queue, end);
        let (mut threads, mut count) = (0, 0);
        for entry in &program.entries {
            let _ = launch(&scout, program, entry);
            for source in std::mem::take(&mut *found.lock()) {
                if gpu.programs.has_text(driver, &source) {
                    continue;
                }
                let end = end.clone();
                // Without any thread, programs are compiled when they are launched.
                if threads < most && Builder::new().spawn_scoped(scope, || work(end)).is_ok() {
                    threads += 1;
                }
                count += 1;
                let _ = queue.send(source);
            }
        }
        drop((queue, end));
        if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::info!("compiling {count} kernels on {threads} threads");
        }
    });
    let compiled = gpu.programs.compiled() - before;
    let elapsed = started.elapsed();
    if elapsed > PATIENCE && compiled > 0 {
        tracing::info!("compiled {compiled} kernels in {:.1} s", elapsed.as_secs_f64());
    }
}

/// A device that runs nothing, and finds the sources of what it should run.
struct Scout {
    /// The driver of the true device.
    driver: Arc<dyn Driver>,
    next: AtomicU64,
    found: Arc<Mutex<Vec<String>>>,
}

impl Driver for Scout {
    fn dialect(&self) -> &'static Dialect {
        self.driver.dialect()
    }

    fn limits(&self) -> &Limits {
        self.driver.limits()
    }

    fn allocate(&self, _: usize) -> Result<Address> {
        Ok(self.next.fetch_add(APART, Ordering::Relaxed))
    }

    fn free(&self, _: Address) {}

    fn upload(&self, _: Address, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn download(&self, _: Address, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(0);
        Ok(())
    }

    fn copy(&self, _: Address, _: Address, _: usize) -> Result<()> {
        Ok(())
    }

    fn fill(&self, _: Address, _: u8, _: usize) -> Result<()> {
        Ok(())
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        self.found.lock().push(source.into());
        Ok((Handle::new(()), None))
    }

    fn load(&self, _: &[u8]) -> Result<Handle> {
        Ok(Handle::new(()))
    }

    fn entry(&self, _: &Handle, _: &str) -> Result<Handle> {
        Ok(Handle::new(()))
    }

    fn launch(&self, _: &Handle, _: Geometry, _: &[Arg<'_>], _: &[Address]) -> Result<()> {
        Ok(())
    }

    fn tile_map(&self, _: &TileView) -> Result<TileMap> {
        Ok([0; 16])
    }

    fn blas(&self) -> Option<&dyn blas::Library> {
        self.driver.blas().map(|_| self as _)
    }

    fn dnn(&self) -> Option<&dyn dnn::Library> {
        self.driver.dnn().map(|_| self as _)
    }

    fn record(&self) -> Result<Handle> {
        Ok(Handle::new(()))
    }

    fn elapsed(&self, _: &Handle, _: &Handle) -> Result<f64> {
        Ok(0.0)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

impl blas::Library for Scout {
    fn workspace(&self) -> usize {
        self.driver.blas().map_or(0, |library| library.workspace())
    }

    fn pitch(&self) -> usize {
        self.driver.blas().map_or(1, |library| library.pitch())
    }

    fn has(&self, product: &blas::Product) -> Result<bool> {
        self.driver.blas().map_or(Ok(false), |library| library.has(product))
    }

    fn multiply(&self, product: &blas::Product) -> Result<bool> {
        self.has(product)
    }
}

impl dnn::Library for Scout {
    fn kernels(&self, problem: &dnn::Problem) -> Result<usize> {
        self.driver.dnn().map_or(Ok(0), |library| library.kernels(problem))
    }

    fn workspace(&self, problem: &dnn::Problem, kernel: usize) -> Result<usize> {
        self.driver.dnn().map_or(Ok(0), |library| library.workspace(problem, kernel))
    }

    fn run(&self, _: &dnn::Problem, _: usize, _: &[Address], _: Address) -> Result<()> {
        Ok(())
    }
}
