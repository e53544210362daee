//! A driver without a device: it checks and records its calls, and runs nothing.

use crate::driver::blas::{Epilogue, Library, Product};
use crate::driver::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, TileMap, TileView};
use isograd_core::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

/// The fault of the next call and of all later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// No program compiles.
    Compiler,
    /// The device is gone: every call but `free` fails.
    Lost,
}

/// The source of a program.
struct Program(String);

/// An entry with the source that it is of.
struct Entry {
    name: String,
    source: String,
}

/// A device of made-up limits whose memory is all zeros.
pub struct NullDriver {
    limits: Limits,
    dialect: &'static Dialect,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    allocations: BTreeMap<Address, usize>,
    next: Address,
    in_use: usize,
    fault: Fault,
    compiled: usize,
    /// The sources of each entry, in the order of their first launches.
    sources: BTreeMap<String, Vec<String>>,
    uploads: usize,
    /// While recording: the bytes that were named.
    recorded: Option<Vec<(Address, usize)>>,
}

/// The bytes that a recording named.
struct Graph(Vec<(Address, usize)>);

impl NullDriver {
    /// A device with so many bytes of memory that speaks `dialect`.
    pub fn new(dialect: &'static Dialect, memory: usize) -> NullDriver {
        let limits = Limits {
            name: "null".into(),
            driver: "1".into(),
            memory,
            max_allocation: memory,
            max_group: 1024,
            local_memory: 48 << 10,
            given_memory: 48 << 10,
            wave: 32,
            units: 64,
            has_f64: true,
            has_mma: !dialect.mma.is_empty(),
            turns_operands: dialect.name != "hip",
            has_wgmma: dialect.files.iter().any(|(file, _)| *file == "matrix/wgmma_words.c"),
            has_tile_maps: dialect.files.iter().any(|(file, _)| *file == "matrix/wgmma.c"),
            has_adds: true,
            is_coherent: dialect.name == "cuda",
            has_shared_words: true,
            keeps_arrays: dialect.name != "hip",
        };
        NullDriver { limits, dialect, state: Mutex::new(State { next: 4096, ..State::default() }) }
    }

    /// The same device without double precision.
    pub fn without_f64(mut self) -> NullDriver {
        self.limits.has_f64 = false;
        self
    }

    /// Sets the fault of all later calls.
    pub fn set_fault(&self, fault: Fault) {
        self.state.lock().fault = fault;
    }

    /// How many programs were compiled.
    pub fn compiled(&self) -> usize {
        self.state.lock().compiled
    }

    /// The sources of an entry, in the order in which they were first launched.
    pub fn sources(&self, entry: &str) -> Vec<String> {
        self.state.lock().sources.get(entry).cloned().unwrap_or_default()
    }

    /// How often bytes were copied from the host.
    pub fn uploads(&self) -> usize {
        self.state.lock().uploads
    }

    fn alive(&self, op: &'static str) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        match state.fault {
            Fault::Lost => Err(Error::backend(op, "the device is lost")),
            _ => Ok(state),
        }
    }

    /// Errors unless the bytes lie within one allocation.
    fn within(&self, op: &'static str, at: Address, bytes: usize) -> Result<()> {
        let mut state = self.alive(op)?;
        let below = state.allocations.range((Unbounded, Included(at))).next_back();
        match below {
            Some((&start, &size)) if at - start + bytes as u64 <= size as u64 => {
                state.recorded.iter_mut().for_each(|recorded| recorded.push((at, bytes)));
                Ok(())
            }
            _ => Err(Error::backend(op, format!("{bytes} bytes at {at:#x} are in no allocation"))),
        }
    }
}

/// A library that has kernels only for products that a mask is applied to, and for results of 520 rows, which are copies of 515, so that
/// our own multiply all others.
struct Masked;

impl Library for Masked {
    fn workspace(&self) -> usize {
        0
    }

    fn pitch(&self) -> usize {
        16
    }

    fn has(&self, product: &Product) -> Result<bool> {
        Ok(product.problem.epilogue == Epilogue::Masked || product.problem.d.rows == 520)
    }

    fn multiply(&self, product: &Product) -> Result<bool> {
        self.has(product)
    }
}

impl Driver for NullDriver {
    fn dialect(&self) -> &'static Dialect {
        self.dialect
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn tile_map(&self, view: &TileView) -> Result<TileMap> {
        let TileView { address, dtype, extents: [columns, lines, batches], strides: [line, batch], .. } = *view;
        let end = (batches - 1) * batch + (lines - 1) * line + columns;
        self.within("tile_map", address, end * dtype.size())?;
        Ok([0; 16])
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let mut state = self.alive("allocate")?;
        if state.in_use + bytes > self.limits.memory {
            return Err(Error::new(Kind::OutOfMemory, "allocate", "the device is full"));
        }
        let address = state.next;
        // A gap after each, so that no position past an end is inside of the next.
        state.next = (address + bytes as Address).next_multiple_of(4096) + 4096;
        state.in_use += bytes;
        state.allocations.insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: Address) {
        let mut state = self.state.lock();
        if let Some(bytes) = state.allocations.remove(&address) {
            state.in_use -= bytes;
        }
    }

    fn blas(&self) -> Option<&dyn Library> {
        Some(&Masked)
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.within("upload", to, bytes.len())?;
        self.state.lock().uploads += 1;
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.synchronize()?;
        self.within("download", from, bytes.len())?;
        bytes.fill(0);
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.within("copy", from, bytes)?;
        self.within("copy", to, bytes)
    }

    fn fill(&self, at: Address, _byte: u8, bytes: usize) -> Result<()> {
        self.within("fill", at, bytes)
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let mut state = self.alive("compile")?;
        if state.fault == Fault::Compiler {
            return Err(Error::backend("compile", "line 1: error"));
        }
        state.compiled += 1;
        Ok((Handle::new(Program(source.into())), Some(source.as_bytes().to_vec())))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let source = String::from_utf8(binary.to_vec()).map_err(|_| Error::backend("load", "not a program"))?;
        Ok(Handle::new(Program(source)))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let Program(source) = program.get();
        match source.contains(&format!("KERNEL({name})")) {
            true => Ok(Handle::new(Entry { name: name.to_string(), source: source.clone() })),
            false => Err(Error::backend("load", format!("there is no entry {name}"))),
        }
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], reached: &[Address]) -> Result<()> {
        let Geometry { groups, threads, .. } = geometry;
        if groups.contains(&0) || threads == 0 || threads > self.limits.max_group {
            return Err(Error::backend("launch", format!("{geometry:?} cannot be launched")));
        }
        let pointers = arguments.iter().filter_map(|a| if let Arg::Pointer(p) = a { Some(p) } else { None });
        pointers.chain(reached).try_for_each(|&p| self.within("launch", p, 1))?;
        let mut state = self.alive("launch")?;
        if let Some(inside) = reached.iter().find(|&p| !state.allocations.contains_key(p)) {
            return Err(Error::backend("launch", format!("{inside:#x} is reached, but begins no allocation")));
        }
        let Entry { name, source } = entry.get();
        let sources = state.sources.entry(name.clone()).or_default();
        if !sources.contains(source) {
            sources.push(source.clone());
        }
        Ok(())
    }

    fn record(&self) -> Result<Handle> {
        self.alive("record").map(|_| Handle::new(()))
    }

    fn elapsed(&self, _: &Handle, _: &Handle) -> Result<f64> {
        Ok(0.0)
    }

    fn synchronize(&self) -> Result<()> {
        match self.alive("synchronize")?.recorded {
            Some(_) => Err(Error::backend("synchronize", "the queue is being recorded")),
            None => Ok(()),
        }
    }

    fn records(&self) -> bool {
        true
    }

    fn begin_capture(&self) -> Result<bool> {
        self.alive("capture")?.recorded = Some(Vec::new());
        Ok(true)
    }

    fn end_capture(&self) -> Result<Handle> {
        Ok(Handle::new(Graph(self.alive("capture")?.recorded.take().unwrap_or_default())))
    }

    /// Errors unless all that was recorded is still allocated.
    fn replay(&self, graph: &Handle) -> Result<()> {
        let Graph(recorded) = graph.get();
        recorded.iter().try_for_each(|&(at, bytes)| self.within("replay", at, bytes))
    }
}
