//! Every fused op has a kernel, an example that shows it to the compilers, and a row of the registry that launches it.

use isograd_core::{Backend, Call, DType, Device, Kernel, Memory, MemoryStats, Result};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Gpu, catalogue};
use isograd_parity::case::Gen;
use isograd_parity::check::launches;
use isograd_parity::registry::OPS;
use std::any::TypeId;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

// Its dialect.
use isograd_opencl as _;

/// Fused ops without a kernel on GPUs, and why.
const WITHOUT_KERNEL: &[(&str, &str)] =
    &[("isograd_core::ops::reduction::reduce::Moments", "GPUs have kernels of all norms")];

/// Fused ops that no row of the registry launches, and why.
const WITHOUT_ROW: &[(&str, &str)] = &[
    (
        "isograd_core::ops::elementwise::each::CastEach",
        "autocast casts the parameters of a scope, which the suite checks",
    ),
    ("isograd_core::ops::indexing::index::MaskPositions", "a device that runs nothing finds no true element in a mask"),
];

/// A device that compiles and runs nothing, and remembers which fused ops it was told to launch.
struct Recorder {
    gpu: Gpu,
    seen: Arc<Mutex<HashSet<TypeId>>>,
}

impl Backend for Recorder {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        self.gpu.allocate(bytes)
    }
    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        self.gpu.upload(memory, bytes)
    }
    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.gpu.download(memory, offset, bytes)
    }
    fn run(&self, call: &Call<'_>) -> Result<()> {
        self.gpu.run(call)?;
        if let Kernel::Fused(fused) = call.kernel {
            self.seen.lock().unwrap().insert(fused.id());
        }
        Ok(())
    }
    fn supports(&self, fused: TypeId, dtype: DType) -> bool {
        self.gpu.supports(fused, dtype)
    }
    fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize()
    }
    fn launch_count(&self) -> Option<u64> {
        self.gpu.launch_count()
    }
    fn memory(&self) -> MemoryStats {
        self.gpu.memory()
    }
    fn reset_peak(&self) {}
}

/// The paths of the fused ops that `f` launches.
fn launched(f: impl FnOnce(&Device)) -> BTreeSet<&'static str> {
    let gpu = Gpu::with_cache(Arc::new(NullDriver::new(catalogue::dialects()[0], 1 << 40)), None);
    let seen = Arc::new(Mutex::default());
    f(&Device::from_backend("null:0", Arc::new(Recorder { gpu, seen: seen.clone() })));
    let paths: HashMap<TypeId, &str> = catalogue::fused().collect();
    seen.lock().unwrap().iter().map(|id| paths[id]).collect()
}

/// The paths of the fused ops that have a kernel.
fn with_kernel() -> BTreeSet<&'static str> {
    catalogue::fused().map(|(_, path)| path).collect()
}

/// The paths of the types for which `Fused` is implemented in the files of a module's folder.
fn declared(folder: &Path, module: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let inner = if ["mod", "lib"].contains(&stem) { module.to_string() } else { format!("{module}::{stem}") };
        if path.is_dir() {
            declared(&path, &inner, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("impl Fused for ")?.split(' ').next());
        found.extend(names.map(|name| format!("{inner}::{name}")));
    }
}

fn difference<'a>(a: impl IntoIterator<Item = &'a str>, b: &BTreeSet<&str>) -> Vec<&'a str> {
    a.into_iter().filter(|path| !b.contains(path)).collect()
}

#[test]
fn every_fused_op_has_a_kernel_and_every_kernel_a_fused_op() {
    let mut all = BTreeSet::new();
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("core").join("src");
    declared(&core, "isograd_core", &mut all);
    let (all, kernels): (BTreeSet<&str>, _) = (all.iter().map(String::as_str).collect(), with_kernel());
    assert!(all.len() > 30, "{all:?}");
    let missing = difference(all.iter().copied(), &kernels);
    let excused: Vec<&str> = WITHOUT_KERNEL.iter().map(|(path, _)| *path).collect();
    assert_eq!(missing, excused, "have no launcher in crates/gpu/src/ops");
    assert_eq!(difference(kernels, &all), [""; 0], "are no fused ops");
}

#[test]
fn every_fused_op_is_launched_by_an_example() {
    let found = launched(|device| catalogue::launch_all(device, DType::F32));
    assert_eq!(difference(with_kernel(), &found), [""; 0], "are launched by no example of their family");
}

#[test]
fn a_row_of_the_registry_launches_every_fused_op() {
    let cpu = Device::cpu().unwrap();
    let found = launched(|device| {
        for op in OPS.iter() {
            for (shape, seed) in [[67, 131], [3, 5]].iter().flat_map(|shape| (1..9).map(move |seed| (shape, seed))) {
                // A call that is not accepted launches nothing.
                let _ = launches(op, &(op.make)(&mut Gen::new(shape, seed, &cpu)), DType::F32, device);
            }
        }
    });
    let excused: Vec<&str> = WITHOUT_ROW.iter().map(|(path, _)| *path).collect();
    assert_eq!(difference(with_kernel(), &found), excused, "are launched by no row of the registry");
}
