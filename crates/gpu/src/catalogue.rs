//! The kernel table: which kernels there are, and the text that a compiler receives for each.
//!
//! No second list of definitions exists: the host code runs on a [`NullDriver`], which keeps the sources of its programs.

use crate::driver::null::NullDriver;
use crate::driver::{Dialect, Registered};
use crate::launch::device::Gpu;
use crate::ops::{self, Example};
use crate::program::source::{FILES, find};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Backend, Call, DType, Device, Error, Kernel, Layout, Memory, Operand, Result, inventory};
use parking_lot::Mutex;
use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory of the device that compiles nothing: more than any op below asks for.
const MEMORY: usize = 1 << 40;
/// Elements of the operands of a generated kernel.
const ELEMENTS: usize = 1 << 20;

/// A kernel.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name. An entry of a file and a row of the pointwise table may have the same one.
    pub name: String,
    /// The file's name, or [`GENERATED`].
    pub file: &'static str,
    /// The kernel of a call, for a generated text.
    pub kernel: Option<Kernel<'static>>,
}

/// Stands for the file of kernels whose text is generated: fill, copy, cast and the rows of the pointwise table.
pub const GENERATED: &str = "elementwise";

/// The dialects of the backends that are linked, by name.
pub fn dialects() -> Vec<&'static Dialect> {
    let mut all: Vec<_> = inventory::iter::<Registered>.into_iter().map(|registered| registered.0).collect();
    all.sort_by_key(|dialect| dialect.name);
    all
}

/// All kernels of a dialect: those of the files, in the files' order, then those that are generated. Errors: `Io` if
/// files are read from a folder and cannot be.
pub fn entries(dialect: &Dialect) -> Result<Vec<Entry>> {
    let own = dialect.files.iter().filter(|(file, _)| FILES.iter().all(|(common, _)| common != file));
    let mut entries = Vec::new();
    for (file, _) in FILES.iter().chain(own).filter(|(file, _)| file.ends_with(".c")) {
        let text = find(dialect, file)?;
        let names = text.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.split_once(')'));
        entries.extend(names.map(|(name, _)| Entry { name: name.to_string(), file, kernel: None }));
    }
    let rows = Pointwise::ALL.iter().map(|&row| (row.name(), Kernel::Pointwise(row)));
    let generated = [("fill", Kernel::Fill), ("copy", Kernel::Copy), ("cast", Kernel::Cast)].into_iter().chain(rows);
    let entry =
        |(name, kernel): (&str, Kernel<'static>)| Entry { name: name.into(), file: GENERATED, kernel: Some(kernel) };
    entries.extend(generated.map(entry));
    Ok(entries)
}

impl Entry {
    /// The whole source, as a compiler receives it for large operands of one dtype, on a device with waves of 32. A
    /// generated kernel's operands are contiguous; a cast is to f32, or from it to f16.
    ///
    /// Errors: `Unsupported` for a dtype in which the kernel does not run.
    pub fn source(&self, dialect: &'static Dialect, dtype: DType) -> Result<String> {
        let first = self.sources(dialect, dtype).into_iter().next();
        first.ok_or_else(|| Error::unsupported("kernels", format!("{} does not run on {dtype}", self.name)))
    }

    /// The sources for operands of several sizes, the first of which is [`source`](Entry::source); none for a dtype in which
    /// the kernel does not run.
    pub fn sources(&self, dialect: &'static Dialect, dtype: DType) -> Vec<String> {
        if let Some(kernel) = self.kernel {
            let driver = Arc::new(NullDriver::new(dialect, MEMORY));
            let gpu = Gpu::with_cache(driver.clone(), None);
            return run_generated(&gpu, kernel, dtype).map(|()| driver.sources(GENERATED)).unwrap_or_default();
        }
        let launched = launched(dialect, dtype);
        // Another family launches a kernel with defines of its own, and its source is not the one to show.
        let (own, others): (Vec<_>, Vec<_>) = launched.iter().partition(|(family, _)| self.file.starts_with(family));
        let mut sources: Vec<String> = Vec::new();
        for source in own.into_iter().chain(others).flat_map(|(_, driver)| driver.sources(&self.name)) {
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        sources
    }
}

/// A sample of at most this many sources, at equal distances. It has the first one.
pub fn sample(sources: Vec<String>, most: usize) -> Vec<String> {
    let step = sources.len().div_ceil(most.max(1)).max(1);
    sources.into_iter().step_by(step).collect()
}

/// The families, each with a device that compiles nothing and has launched what the family launches.
type Launched = Arc<Vec<(&'static str, Arc<NullDriver>)>>;

/// The launches of all families in one dtype. They are made once: every kernel of every file asks for them.
fn launched(dialect: &'static Dialect, dtype: DType) -> Launched {
    static ALL: Mutex<BTreeMap<(&str, &str), Launched>> = Mutex::new(BTreeMap::new());
    let launch = || {
        let of = |(family, examples): (&'static str, &[Example])| {
            let driver = Arc::new(NullDriver::new(dialect, MEMORY));
            let device = Device::from_backend("null:0", Arc::new(Gpu::with_cache(driver.clone(), None)));
            launch(&device, dtype, examples);
            (family, driver)
        };
        Arc::new(ops::examples().map(of).collect())
    };
    ALL.lock().entry((dialect.name, dtype.name())).or_insert_with(launch).clone()
}

/// Launches every kernel of the files on a device, in programs of several sizes.
pub fn launch_all(device: &Device, dtype: DType) {
    ops::examples().for_each(|(_, examples)| launch(device, dtype, examples));
}

/// An op that does not take this dtype launches nothing.
fn launch(device: &Device, dtype: DType, examples: &[Example]) {
    examples.iter().for_each(|example| drop(example(device, dtype)));
}

/// The types of the descriptors of all fused ops that have kernels, and the paths of these types.
pub fn fused() -> impl Iterator<Item = (TypeId, &'static str)> {
    ops::types()
}

fn run_generated(gpu: &Gpu, kernel: Kernel<'_>, dtype: DType) -> Result<()> {
    let (inputs, outputs, attributes) = match kernel {
        Kernel::Pointwise(row) if row.is_inout() => (row.inputs() - row.outputs(), row.outputs(), row.attributes()),
        Kernel::Pointwise(row) => (row.inputs(), row.outputs(), row.attributes()),
        Kernel::Fill => (0, 1, 1),
        _ => (1, 1, 0),
    };
    let to = match (kernel, dtype) {
        (Kernel::Cast, DType::F32) => DType::F16,
        (Kernel::Cast, _) => DType::F32,
        _ => dtype,
    };
    let memory: Vec<Box<dyn Memory>> =
        (0..inputs + outputs).map(|_| gpu.allocate(ELEMENTS * size_of::<f64>())).collect::<Result<_>>()?;
    let layout = Layout::contiguous(ELEMENTS.into());
    let operands: Vec<Operand<'_>> = memory
        .iter()
        .enumerate()
        .map(|(k, memory)| Operand { memory: &**memory, layout: &layout, dtype: if k < inputs { dtype } else { to } })
        .collect();
    let (inputs, outputs) = operands.split_at(inputs);
    let (ints, floats) = (vec![0; attributes], vec![0.0; attributes]);
    gpu.run(&Call { op: "kernels", kernel, inputs, outputs, ints: &ints, floats: &floats })
}

#[cfg(test)]
mod tests {
    use super::*;

    static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

    #[test]
    fn a_sample_is_spread_over_all_sources() {
        let of = |n: usize, most| sample((0..n).map(|i| i.to_string()).collect(), most).join(" ");
        assert_eq!([of(0, 3), of(2, 3), of(3, 3), of(7, 3)], ["", "0 1", "0 1 2", "0 3 6"]);
    }

    #[test]
    fn every_kernel_has_a_source() {
        let entries = entries(&DIALECT).unwrap();
        assert!(entries.iter().any(|entry| (&*entry.name, entry.file) == ("softmax_rows", "normalization/softmax.c")));
        for entry in entries {
            let mut sources =
                [DType::F32, DType::F16, DType::I64].into_iter().map(|dtype| entry.source(&DIALECT, dtype));
            let source = sources.find_map(Result::ok);
            let source =
                source.unwrap_or_else(|| panic!("{} has no source; launch it in an example of its family", entry.name));
            let name = if entry.kernel.is_some() { GENERATED } else { &entry.name };
            assert!(source.contains(&format!("KERNEL({name})")), "{}", entry.name);
        }
    }
}
