//! cuBLASLt, NVIDIA's library of matrix products: what is called of it.

// C: handles, and attributes as bytes.
#![allow(unsafe_code)]

use crate::library::PLACES;
use crate::stream::{Stream, turn};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogues, cublasLtMatmulAlgo_t as Algorithm,
    cublasLtMatmulDescAttributes_t as Operation, cublasLtMatmulPreferenceAttributes_t as Preference,
    cublasLtMatrixLayoutAttribute_t as Layout, cublasLtReductionScheme_t as Reduction, cublasStatus_t as Status,
    cudaDataType_t as DataType,
};
use isograd_core::ops::Transpose;
use isograd_core::{DType, Error, Precision, Result};
use isograd_gpu::Address;
use isograd_gpu::driver::blas::{self, Epilogue, Factor, MatmulProblem, Matrices, Product};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
        false => &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"],
    },
    stem: if cfg!(windows) { "cublasLt64_" } else { "libcublasLt.so" },
    remedy: "pip install nvidia-cublas",
};

/// The oldest version, 12.0: the values of attributes were others before.
const OLDEST: usize = 12_00_00;
/// What NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Bytes that the copy engine moves at least.
const PITCH: usize = 16;
/// Plans that are kept.
const MOST_PLANS: usize = 4096;
/// Bytes at multiples of which all memory begins that the driver gives.
const ALIGNMENT: u32 = 256;

type Code = c_uint;
type Pointer = *mut c_void;
type Set = unsafe extern "C" fn(Pointer, c_uint, *const c_void, usize) -> Code;
type Release = unsafe extern "C" fn(Pointer) -> Code;

/// `cublasLtMatmulHeuristicResult_t`, whose `state` may be a number that its Rust type does not know.
#[repr(C)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: Code,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Found>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>());

library! {
    /// The library.
    pub struct CublasLt;
    "cublasLtGetVersion" version: fn() -> usize;
    "cublasLtGetStatusName" name: fn(Code) -> *const c_char;
    "cublasLtCreate" create: fn(*mut Pointer) -> Code;
    "cublasLtDestroy" destroy: fn(Pointer) -> Code;
    "cublasLtMatmulDescCreate" create_operation: fn(*mut Pointer, Compute, DataType) -> Code;
    "cublasLtMatmulDescSetAttribute" set_operation: fn(Pointer, c_uint, *const c_void, usize) -> Code;
    "cublasLtMatmulDescDestroy" destroy_operation: fn(Pointer) -> Code;
    "cublasLtMatrixLayoutCreate" create_layout: fn(*mut Pointer, DataType, u64, u64, i64) -> Code;
    "cublasLtMatrixLayoutSetAttribute" set_layout: fn(Pointer, c_uint, *const c_void, usize) -> Code;
    "cublasLtMatrixLayoutDestroy" destroy_layout: fn(Pointer) -> Code;
    "cublasLtMatmulPreferenceCreate" create_preference: fn(*mut Pointer) -> Code;
    "cublasLtMatmulPreferenceSetAttribute" set_preference: fn(Pointer, c_uint, *const c_void, usize) -> Code;
    "cublasLtMatmulPreferenceDestroy" destroy_preference: fn(Pointer) -> Code;
    "cublasLtMatmulAlgoGetHeuristic" heuristic: fn(
        Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut Found, *mut c_int
    ) -> Code;
    "cublasLtMatmul" matmul: fn(
        Pointer, Pointer, *const c_void, Address, Pointer, Address, Pointer, *const c_void, Address, Pointer, Address, Pointer,
        *const Algorithm, Address, usize, Pointer
    ) -> Code;
}

impl CublasLt {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static CublasLt> {
        static OPENED: Opened<CublasLt> = Opened::new("cuda", "cuBLASLt");
        OPENED.get(|| {
            // SAFETY: the types are those of cublasLt.h, which have been the same since CUDA 12.0 (an enum is an unsigned int, a
            // handle and a device's memory are pointers).
            let library = unsafe { CublasLt::of(FILES.open()?) }?;
            match library.number() >= OLDEST {
                true => Ok(library),
                false => Err(format!("it has version {}, expected 12.0 or later", library.version())),
            }
        })
    }

    fn number(&self) -> usize {
        // SAFETY: the function asks for nothing.
        unsafe { (self.version)() }
    }

    /// Its version, `13.1`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.number() / 10_000, self.number() / 100 % 100)
    }

    /// Describes a product to the library, for which no device is needed; none of a dtype that it does not multiply.
    /// Errors: `Backend`.
    pub fn describe(&'static self, product: &Product) -> Result<Option<Description>> {
        let problem = &product.problem;
        let (Some(inputs), Some(outputs)) = (data_type(problem.dtype), data_type(problem.output)) else {
            return Ok(None);
        };
        let operation = self.operation(problem)?;
        let layout = |data_type, matrices| self.layout(data_type, problem.batches, matrices);
        let description = Description {
            a: layout(inputs, problem.a.0)?,
            b: layout(inputs, problem.b.0)?,
            c: layout(outputs, problem.c)?,
            d: layout(outputs, problem.d)?,
            preference: self.preference(product)?,
            operation,
        };
        // The choice of a kernel looks at the alignment of these, too.
        description.aim(product)?;
        Ok(Some(description))
    }

    fn operation(&'static self, problem: &MatmulProblem) -> Result<Object> {
        let (compute, scale) = match (problem.dtype, problem.precision) {
            (DType::F64, _) => (Compute::CUBLAS_COMPUTE_64F, DataType::CUDA_R_64F),
            (DType::F32, Precision::Tf32) => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DataType::CUDA_R_32F),
            _ => (Compute::CUBLAS_COMPUTE_32F, DataType::CUDA_R_32F),
        };
        let operation = self.object("operation", self.set_operation, self.destroy_operation, |at| {
            // SAFETY: a new operation is written where it is kept.
            unsafe { (self.create_operation)(at, compute, scale) }
        })?;
        let set = |attribute: Operation, value: c_uint| operation.set(attribute as c_uint, value);
        // CUBLAS_OP_N is 0, CUBLAS_OP_T 1.
        set(Operation::CUBLASLT_MATMUL_DESC_TRANSA, (problem.a.1 == Transpose::Yes) as c_uint)?;
        set(Operation::CUBLASLT_MATMUL_DESC_TRANSB, (problem.b.1 == Transpose::Yes) as c_uint)?;
        set(Operation::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(problem) as c_uint)?;
        if let Some(leading) = problem.aux {
            operation.set(Operation::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD as c_uint, leading as i64)?;
        }
        Ok(operation)
    }

    fn layout(&'static self, data_type: DataType, batches: usize, matrices: Matrices) -> Result<Object> {
        let Matrices { rows, columns, leading, batch } = matrices;
        let layout = self.object("layout", self.set_layout, self.destroy_layout, |at| {
            // SAFETY: as above.
            unsafe { (self.create_layout)(at, data_type, rows as u64, columns as u64, leading as i64) }
        })?;
        if batches > 1 {
            layout.set(Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as c_uint, batches as i32)?;
            layout.set(Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as c_uint, batch as i64)?;
        }
        Ok(layout)
    }

    fn preference(&'static self, product: &Product) -> Result<Object> {
        let preference = self.object("preference", self.set_preference, self.destroy_preference, |at| {
            // SAFETY: as above.
            unsafe { (self.create_preference)(at) }
        })?;
        let set = |attribute: Preference, value: u32| preference.set(attribute as c_uint, value);
        set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(&product.problem))?;
        let alignments = [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.c),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d),
        ];
        alignments.into_iter().try_for_each(|(attribute, address)| set(attribute, alignment(address)))?;
        let workspace = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        preference.set(workspace as c_uint, WORKSPACE as u64)?;
        Ok(preference)
    }

    fn object(
        &'static self,
        what: &'static str,
        set: Set,
        release: Release,
        create: impl FnOnce(*mut Pointer) -> Code,
    ) -> Result<Object> {
        let mut at = null_mut();
        self.check(what, create(&mut at))?;
        Ok(Object { library: self, what, at, set, release })
    }

    fn check(&self, what: &str, code: Code) -> Result<()> {
        if code == Status::CUBLAS_STATUS_SUCCESS as Code {
            return Ok(());
        }
        // SAFETY: the library has a name for every number, which stays.
        let name = unsafe { CStr::from_ptr((self.name)(code)) };
        Err(Error::backend("blas", format!("cuBLASLt, {what}: {} ({code})", name.to_string_lossy())))
    }
}

fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F16 => Some(DataType::CUDA_R_16F),
        DType::BF16 => Some(DataType::CUDA_R_16BF),
        DType::F32 => Some(DataType::CUDA_R_32F),
        DType::F64 => Some(DataType::CUDA_R_64F),
        _ => None,
    }
}

fn epilogue(problem: &MatmulProblem) -> Epilogues {
    match problem.summed {
        Some(Factor::A) => return Epilogues::CUBLASLT_EPILOGUE_BGRADA,
        Some(Factor::B) => return Epilogues::CUBLASLT_EPILOGUE_BGRADB,
        None => {}
    }
    match (problem.epilogue, problem.aux.is_some(), problem.has_bias) {
        (Epilogue::Identity, _, false) => Epilogues::CUBLASLT_EPILOGUE_DEFAULT,
        (Epilogue::Identity, _, true) => Epilogues::CUBLASLT_EPILOGUE_BIAS,
        (Epilogue::GeluTanh, false, false) => Epilogues::CUBLASLT_EPILOGUE_GELU,
        (Epilogue::GeluTanh, false, true) => Epilogues::CUBLASLT_EPILOGUE_GELU_BIAS,
        (Epilogue::GeluTanh, true, false) => Epilogues::CUBLASLT_EPILOGUE_GELU_AUX,
        (Epilogue::GeluTanh, true, true) => Epilogues::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        // Products without a bias have these.
        (Epilogue::Masked, ..) => Epilogues::CUBLASLT_EPILOGUE_DRELU,
        (Epilogue::GeluTanhGradient, ..) => Epilogues::CUBLASLT_EPILOGUE_DGELU,
    }
}

/// How sums that are cut along K may be put together: never from what was rounded to 16 bits. What comes after the sums would
/// be added to such, too.
fn reductions(problem: &MatmulProblem) -> u32 {
    let (in_place, apart) =
        (Reduction::CUBLASLT_REDUCTION_SCHEME_INPLACE, Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    match (
        problem.output.size(),
        problem.has_bias || problem.epilogue != Epilogue::Identity || problem.summed.is_some(),
    ) {
        (2, true) => Reduction::CUBLASLT_REDUCTION_SCHEME_NONE as u32,
        (2, false) => apart as u32,
        _ => in_place as u32 | apart as u32,
    }
}

/// The largest power of two that divides an address, at most [`ALIGNMENT`].
fn alignment(address: Address) -> u32 {
    1 << address.trailing_zeros().min(ALIGNMENT.trailing_zeros())
}

/// A descriptor that the library made.
struct Object {
    library: &'static CublasLt,
    what: &'static str,
    at: Pointer,
    set: Set,
    release: Release,
}

// SAFETY: a descriptor is plain memory.
unsafe impl Send for Object {}

impl Object {
    /// Sets an attribute, whose type the library checks by its size.
    fn set<T: Copy>(&self, attribute: c_uint, value: T) -> Result<()> {
        // SAFETY: the descriptor lives, and the value is read before the call returns.
        let code = unsafe { (self.set)(self.at, attribute, from_ref(&value).cast(), size_of::<T>()) };
        self.library.check(self.what, code)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more.
        unsafe { (self.release)(self.at) };
    }
}

/// A product as the library is told of it.
pub struct Description {
    operation: Object,
    a: Object,
    b: Object,
    c: Object,
    d: Object,
    preference: Object,
}

impl Description {
    /// Says where this product's vectors and second output are.
    fn aim(&self, product: &Product) -> Result<()> {
        let set = |attribute: Operation, address: Address| self.operation.set(attribute as c_uint, address);
        if product.problem.has_bias {
            set(Operation::CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias)?;
        }
        if product.problem.summed.is_some() {
            set(Operation::CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.sums)?;
        }
        if product.problem.aux.is_some() {
            set(Operation::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux)?;
        }
        Ok(())
    }
}

/// A description with the kernel that the library chose for it.
struct ChosenAlgorithm {
    description: Description,
    algorithm: Algorithm,
}

/// The key of a plan: a problem, and the alignment of every address.
type Key = (MatmulProblem, [u32; 7]);

/// The library on a stream.
pub struct Products {
    library: &'static CublasLt,
    handle: Pointer,
    stream: Arc<Stream>,
    /// None of what the library has no kernel for.
    plans: Mutex<HashMap<Key, Option<ChosenAlgorithm>>>,
}

// SAFETY: cuBLASLt's handles belong to no thread; the plans are locked.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl Products {
    /// None where the library is missing, or does not run on the device.
    pub fn new(stream: &Arc<Stream>) -> Option<Products> {
        let made = CublasLt::open().and_then(|library| {
            let _turn = turn();
            stream.enter("blas")?;
            let mut handle = null_mut();
            // SAFETY: the handle is written where it is; it is for the context that was entered.
            library.check("handle", unsafe { (library.create)(&mut handle) })?;
            Ok(Products { library, handle, stream: stream.clone(), plans: Mutex::default() })
        });
        made.inspect_err(|error| tracing::debug!(%error, "our own kernels multiply matrices")).ok()
    }

    fn plan(&self, product: &Product) -> Result<Option<ChosenAlgorithm>> {
        let Some(description) = self.library.describe(product)? else { return Ok(None) };
        let Description { operation, a, b, c, d, preference } = &description;
        let mut found = Found {
            algorithm: Algorithm { data: [0; 8] },
            workspace: 0,
            state: Status::CUBLAS_STATUS_NOT_SUPPORTED as Code,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut count = 0;
        // SAFETY: the handle and the descriptors live, and there is room for the one result that is asked for.
        let code = unsafe {
            let ask = self.library.heuristic;
            ask(self.handle, operation.at, a.at, b.at, c.at, d.at, preference.at, 1, &mut found, &mut count)
        };
        let has_none = [Status::CUBLAS_STATUS_NOT_SUPPORTED, Status::CUBLAS_STATUS_INVALID_VALUE];
        if has_none.iter().any(|&status| status as Code == code) {
            return Ok(None);
        }
        self.library.check("heuristic", code)?;
        let is_found = count > 0 && found.state == Status::CUBLAS_STATUS_SUCCESS as Code;
        Ok(is_found.then_some(ChosenAlgorithm { algorithm: found.algorithm, description }))
    }

    fn enqueue(&self, product: &Product, plan: &ChosenAlgorithm) -> Result<()> {
        let ChosenAlgorithm { description, algorithm } = plan;
        description.aim(product)?;
        let double = [product.alpha, product.beta];
        let single = double.map(|factor| factor as f32);
        let [alpha, beta]: [*const c_void; 2] = match product.problem.dtype {
            DType::F64 => double.each_ref().map(|factor| from_ref(factor).cast()),
            _ => single.each_ref().map(|factor| from_ref(factor).cast()),
        };
        let Description { operation, a, b, c, d, .. } = description;
        let Product { a: at_a, b: at_b, c: at_c, d: at_d, workspace, .. } = *product;
        // SAFETY: the handle and the descriptors live; the matrices, the vectors and the workspace are within allocations,
        // which the caller sees to; the factors are read before the call returns.
        let code = unsafe {
            (self.library.matmul)(
                self.handle,
                operation.at,
                alpha,
                at_a,
                a.at,
                at_b,
                b.at,
                beta,
                at_c,
                c.at,
                at_d,
                d.at,
                algorithm,
                workspace,
                WORKSPACE,
                self.stream.stream.cast(),
            )
        };
        self.library.check("product", code)
    }
}

impl Products {
    /// Calls `f` with the plan of a product; false if there is none.
    fn with_plan(&self, product: &Product, f: impl FnOnce(&ChosenAlgorithm) -> Result<()>) -> Result<bool> {
        self.stream.enter("blas")?;
        let Product { a, b, c, d, bias, aux, sums, .. } = *product;
        let key = (product.problem, [a, b, c, d, bias, aux, sums].map(alignment));
        let mut plans = self.plans.lock();
        if !plans.contains_key(&key) {
            let plan = match self.plan(product) {
                Ok(plan) => plan,
                // Some versions choose no kernel while a stream is captured. Another time they will.
                Err(error) => {
                    tracing::warn!(%error, "our own kernel multiplies");
                    return Ok(false);
                }
            };
            if plans.len() >= MOST_PLANS {
                plans.clear();
            }
            plans.insert(key, plan);
        }
        match &plans[&key] {
            Some(plan) => f(plan).map(|()| true),
            None => Ok(false),
        }
    }
}

impl blas::Library for Products {
    fn workspace(&self) -> usize {
        WORKSPACE
    }

    fn pitch(&self) -> usize {
        PITCH
    }

    fn has(&self, product: &Product) -> Result<bool> {
        self.with_plan(product, |_| Ok(()))
    }

    fn multiply(&self, product: &Product) -> Result<bool> {
        self.with_plan(product, |plan| self.enqueue(product, plan))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        let _turn = turn();
        let _ = self.stream.enter("blas");
        // SAFETY: the handle was made in `new`, and nothing uses it any more.
        unsafe { (self.library.destroy)(self.handle) };
    }
}
