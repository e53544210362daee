//! cuDNN, NVIDIA's library of neural networks: what is called of it, through its interface of graphs.

// C: handles, and attributes as arrays.
#![allow(unsafe_code)]

mod attention;
mod convolution;

use crate::library::PLACES;
use crate::stream::{Stream, turn};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Heuristic, cudnnBackendNumericalNote_t as Note,
    cudnnDataType_t as DataType,
};
use isograd_core::{DType, Error, Result};
use isograd_gpu::Address;
use isograd_gpu::driver::dnn::{self, Problem, View};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

const FILES: Files = Files {
    places: &PLACES,
    names: if cfg!(windows) { &["cudnn64_9.dll"] } else { &["libcudnn.so.9", "libcudnn.so"] },
    stem: if cfg!(windows) { "cudnn64_" } else { "libcudnn.so" },
    remedy: "pip install nvidia-cudnn-cu13",
};

/// The oldest version, 9.0.
const OLDEST: usize = 9_00_00;
/// Kernels of one problem.
const MOST_KERNELS: usize = 8;
/// Configurations that are asked for.
const MOST_FOUND: usize = 32;
/// Networks whose kernels are kept.
const MOST_FORMS: usize = 1024;
type Code = c_uint;
type Pointer = *mut c_void;

library! {
    /// The library.
    pub struct Cudnn;
    "cudnnGetVersion" version: fn() -> usize;
    "cudnnGetErrorString" name: fn(Code) -> *const c_char;
    "cudnnCreate" create_handle: fn(*mut Pointer) -> Code;
    "cudnnDestroy" destroy_handle: fn(Pointer) -> Code;
    "cudnnSetStream" set_stream: fn(Pointer, Pointer) -> Code;
    "cudnnBackendCreateDescriptor" create: fn(c_uint, *mut Pointer) -> Code;
    "cudnnBackendDestroyDescriptor" destroy: fn(Pointer) -> Code;
    "cudnnBackendSetAttribute" set: fn(Pointer, c_uint, c_uint, i64, *const c_void) -> Code;
    "cudnnBackendGetAttribute" get: fn(Pointer, c_uint, c_uint, i64, *mut i64, *mut c_void) -> Code;
    "cudnnBackendFinalize" finalize: fn(Pointer) -> Code;
    "cudnnBackendExecute" execute: fn(Pointer, Pointer, Pointer) -> Code;
}

impl Cudnn {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Cudnn> {
        static OPENED: Opened<Cudnn> = Opened::new("cuda", "cuDNN");
        OPENED.get(|| {
            // SAFETY: the types are those of cudnn_graph.h, which have been the same since cuDNN 9.0 (an enum is an unsigned int, a
            // handle and a descriptor are pointers).
            let library = unsafe { Cudnn::of(FILES.open()?) }?;
            match library.number() >= OLDEST {
                true => Ok(library),
                false => Err(format!("it has version {}, expected 9.0 or later", library.version())),
            }
        })
    }

    fn number(&self) -> usize {
        // SAFETY: the function asks for nothing.
        unsafe { (self.version)() }
    }

    /// Its version, `9.1`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.number() / 10_000, self.number() / 100 % 100)
    }

    fn check(&self, what: &str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library has a text for every number, which stays.
        let name = unsafe { CStr::from_ptr((self.name)(code)) };
        Err(Error::backend("dnn", format!("cuDNN, {what}: {} ({code})", name.to_string_lossy())))
    }

    fn object(&'static self, kind: Kind) -> Result<Object> {
        let mut at = null_mut();
        // SAFETY: a new descriptor is written where it is kept.
        self.check("descriptor", unsafe { (self.create)(kind as c_uint, &mut at) })?;
        Ok(Object { library: self, at })
    }

    /// A tensor of a graph, whose memory begins at multiples of 16 bytes.
    fn tensor(&'static self, id: i64, view: &View, data_type: DataType, storage: Storage) -> Result<Object> {
        let tensor = self.object(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[data_type as c_uint])?;
        tensor.set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &view.extents)?;
        tensor.set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &view.strides)?;
        tensor.set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[id])?;
        tensor.set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[16i64])?;
        match storage {
            Storage::Memory => {}
            Storage::Within => {
                tensor.set(Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[true])?
            }
            Storage::Host => tensor.set(Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Type::CUDNN_TYPE_BOOLEAN, &[true])?,
        }
        tensor.finalize("tensor")?;
        Ok(tensor)
    }

    /// The configurations that a mode of the library proposes for a graph, the best guess first.
    fn proposed(&'static self, graph: &Object, mode: Heuristic) -> Result<Vec<Object>> {
        let heuristic = self.object(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.set_objects(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
        heuristic.set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode as c_uint])?;
        heuristic.finalize("heuristic")?;
        let new = |_| self.object(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        let mut found: Vec<Object> = (0..MOST_FOUND).map(new).collect::<Result<_>>()?;
        let count = heuristic.get_objects(Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, &found)?;
        found.truncate(count);
        Ok(found)
    }

    /// The remarks on the numbers of an engine.
    fn notes(&'static self, configuration: &Object) -> Result<Vec<c_uint>> {
        let engine = self.object(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        let engines = std::slice::from_ref(&engine);
        configuration.get_objects(Attribute::CUDNN_ATTR_ENGINECFG_ENGINE, engines)?;
        let mut notes = vec![0; Note::CUDNN_NUMERICAL_NOTE_TYPE_COUNT as usize];
        let name = Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
        let count = engine.get(name, Type::CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)?;
        notes.truncate(count);
        Ok(notes)
    }
}

/// Where the numbers of a graph's tensor are.
#[derive(Clone, Copy)]
enum Storage {
    /// In memory of the device.
    Memory,
    /// Within the kernel.
    Within,
    /// A number of the host, which is read when the kernel is enqueued.
    Host,
}

/// A descriptor that the library made.
struct Object {
    library: &'static Cudnn,
    at: Pointer,
}

// SAFETY: a descriptor is plain memory.
unsafe impl Send for Object {}

impl Object {
    fn set<T: Copy>(&self, name: Attribute, kind: Type, values: &[T]) -> Result<()> {
        let (name, kind, count) = (name as c_uint, kind as c_uint, values.len() as i64);
        // SAFETY: the descriptor lives, and the values, of the attribute's type, are read before the call returns.
        let code = unsafe { (self.library.set)(self.at, name, kind, count, values.as_ptr().cast()) };
        self.library.check("attribute", code)
    }

    fn set_objects(&self, name: Attribute, objects: &[&Object]) -> Result<()> {
        let pointers: Vec<Pointer> = objects.iter().map(|object| object.at).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &pointers)
    }

    /// Reads an attribute to `values`, and returns how many there are.
    fn get<T: Copy>(&self, name: Attribute, kind: Type, values: &mut [T]) -> Result<usize> {
        let (name, kind, most) = (name as c_uint, kind as c_uint, values.len() as i64);
        let mut count = 0;
        // SAFETY: the descriptor lives, and at most `most` values of the attribute's type are written.
        let code = unsafe { (self.library.get)(self.at, name, kind, most, &mut count, values.as_mut_ptr().cast()) };
        self.library.check("attribute", code)?;
        Ok((count.max(0) as usize).min(values.len()))
    }

    /// Fills descriptors with those of an attribute, and returns how many there are.
    fn get_objects(&self, name: Attribute, to: &[Object]) -> Result<usize> {
        let mut pointers: Vec<Pointer> = to.iter().map(|object| object.at).collect();
        self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut pointers)
    }

    fn finalize(&self, what: &str) -> Result<()> {
        // SAFETY: the descriptor lives.
        self.library.check(what, unsafe { (self.library.finalize)(self.at) })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more.
        unsafe { (self.library.destroy)(self.at) };
    }
}

fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F16 => Some(DataType::CUDNN_DATA_HALF),
        DType::BF16 => Some(DataType::CUDNN_DATA_BFLOAT16),
        DType::F32 => Some(DataType::CUDNN_DATA_FLOAT),
        DType::F64 => Some(DataType::CUDNN_DATA_DOUBLE),
        _ => None,
    }
}

/// A kernel: a plan of the library, and what it was made of.
struct ExecutionPlan {
    plan: Object,
    workspace: usize,
    _configuration: Object,
}

/// The kernels of a problem.
struct Kernels {
    plans: Vec<ExecutionPlan>,
    _graph: Vec<Object>,
}

/// The library on a stream.
pub struct Networks {
    library: &'static Cudnn,
    handle: Pointer,
    stream: Arc<Stream>,
    kernels: Mutex<HashMap<Problem, Kernels>>,
}

// SAFETY: the handle is used by one thread at a time, which holds the lock of the kernels.
unsafe impl Send for Networks {}
// SAFETY: as above.
unsafe impl Sync for Networks {}

impl Networks {
    /// None where the library is missing, or does not run on the device.
    pub fn new(stream: &Arc<Stream>) -> Option<Networks> {
        let made = Cudnn::open().and_then(|library| {
            let _turn = turn();
            stream.enter("dnn")?;
            let mut handle = null_mut();
            // SAFETY: the handle is written where it is; it is for the context that was entered.
            library.check("handle", unsafe { (library.create_handle)(&mut handle) })?;
            let networks = Networks { library, handle, stream: stream.clone(), kernels: Mutex::default() };
            // SAFETY: the handle and the stream live.
            library.check("stream", unsafe { (library.set_stream)(handle, stream.stream.cast()) })?;
            Ok(networks)
        });
        made.inspect_err(|error| tracing::debug!(%error, "our own kernels run")).ok()
    }

    fn find(&self, problem: &Problem) -> Result<Kernels> {
        // Each plan is half a second's work. Of those with the same bits in every run, the first is taken.
        let most = if problem.is_deterministic() { 1 } else { MOST_KERNELS };
        match problem {
            Problem::Convolution(problem) => self.convolution_kernels(problem, most),
            Problem::Attention(problem) => self.attention_kernels(problem, most),
        }
    }

    /// At most so many kernels of a graph, which compute its operations as one. `is_taken` is asked with the remarks on a kernel's numbers. The other
    /// descriptors are kept with the kernels.
    fn kernels_of(
        &self,
        operations: &[&Object],
        most: usize,
        is_taken: impl Fn(&[c_uint]) -> bool,
    ) -> Result<(Object, Vec<ExecutionPlan>)> {
        let graph = self.library.object(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        graph.set_objects(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, operations)?;
        graph.finalize("graph")?;
        let mut plans = Vec::new();
        for mode in [Heuristic::CUDNN_HEUR_MODE_A, Heuristic::CUDNN_HEUR_MODE_FALLBACK] {
            for configuration in self.library.proposed(&graph, mode).unwrap_or_default() {
                if plans.len() >= most || !is_taken(&self.library.notes(&configuration)?) {
                    continue;
                }
                // Not every configuration that is proposed can be made.
                plans.extend(self.plan(configuration).ok());
            }
        }
        Ok((graph, plans))
    }

    fn plan(&self, configuration: Object) -> Result<ExecutionPlan> {
        let plan = self.library.object(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        plan.set_objects(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&configuration])?;
        plan.finalize("plan")?;
        let mut workspace = [0i64];
        plan.get(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, &mut workspace)?;
        Ok(ExecutionPlan { plan, workspace: workspace[0].max(0) as usize, _configuration: configuration })
    }

    fn with_kernels<T>(&self, problem: &Problem, f: impl FnOnce(&Kernels) -> Result<T>) -> Result<T> {
        self.stream.enter("dnn")?;
        let mut kernels = self.kernels.lock();
        if !kernels.contains_key(problem) {
            if kernels.len() >= MOST_FORMS {
                kernels.clear();
            }
            let found = self.find(problem)?;
            kernels.insert(problem.clone(), found);
        }
        f(&kernels[problem])
    }

    /// Enqueues a kernel with the addresses of the operands of these numbers.
    fn execute(&self, plan: &ExecutionPlan, ids: &[i64], addresses: &[Address], workspace: Address) -> Result<()> {
        let pack = self.library.object(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, ids)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, addresses)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        pack.finalize("operands")?;
        // SAFETY: the handle and the descriptors live; the operands and the workspace are within allocations, which the caller sees to.
        self.library.check("run", unsafe { (self.library.execute)(self.handle, plan.plan.at, pack.at) })
    }
}

impl dnn::Library for Networks {
    fn kernels(&self, problem: &Problem) -> Result<usize> {
        self.with_kernels(problem, |kernels| Ok(kernels.plans.len()))
    }

    fn workspace(&self, problem: &Problem, kernel: usize) -> Result<usize> {
        self.with_kernels(problem, |kernels| {
            let own = kernels.plans[kernel].workspace;
            Ok(match problem {
                Problem::Convolution(_) => own,
                Problem::Attention(problem) => own.next_multiple_of(attention::ALIGN) + attention::extra(problem),
            })
        })
    }

    fn run(&self, problem: &Problem, kernel: usize, addresses: &[Address], workspace: Address) -> Result<()> {
        self.with_kernels(problem, |kernels| {
            let plan = &kernels.plans[kernel];
            match problem {
                Problem::Convolution(_) => self.execute(plan, &convolution::IDS, addresses, workspace),
                Problem::Attention(problem) => self.attend(problem, plan, addresses, workspace),
            }
        })
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        let _turn = turn();
        let _ = self.stream.enter("dnn");
        self.kernels.lock().clear();
        // SAFETY: the handle was made in `new`, and nothing uses it any more.
        unsafe { (self.library.destroy_handle)(self.handle) };
    }
}
