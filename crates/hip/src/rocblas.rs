//! rocBLAS, AMD's library of matrix products: what is called of it.

// C: handles, and matrices without types.
#![allow(unsafe_code)]

use crate::library::PLACES;
use crate::stream::{Stream, pointer};
use crate::sys::Pointer;
use isograd_core::ops::Transpose;
use isograd_core::{DType, Error, Result};
use isograd_gpu::Address;
use isograd_gpu::driver::blas::{self, Epilogue, MatmulProblem, Product};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["rocblas.dll"],
        false => &["librocblas.so", "librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0"],
    },
    stem: if cfg!(windows) { "rocblas" } else { "librocblas.so" },
    remedy: "ROCm has it",
};

/// What kernels that cut K into parts may need.
const WORKSPACE: usize = 32 << 20;

type Code = c_int;

/// `rocblas_status_success`.
const SUCCESS: Code = 0;
/// `rocblas_status_not_implemented`, `rocblas_status_excluded_from_build`, `rocblas_status_arch_mismatch`: there is no kernel.
const NO_KERNEL: [Code; 3] = [2, 14, 15];
/// `rocblas_atomics_not_allowed`: the same sums every time.
const NO_ATOMICS: c_int = 0;
/// `rocblas_gemm_algo_standard`.
const STANDARD: c_int = 0;

library! {
    /// The library.
    pub struct Rocblas;
    "rocblas_create_handle" create: fn(*mut Pointer) -> Code;
    "rocblas_destroy_handle" destroy: fn(Pointer) -> Code;
    "rocblas_set_stream" set_stream: fn(Pointer, Pointer) -> Code;
    "rocblas_set_atomics_mode" set_atomics: fn(Pointer, c_int) -> Code;
    "rocblas_set_workspace" set_workspace: fn(Pointer, Pointer, usize) -> Code;
    "rocblas_status_to_string" message: fn(Code) -> *const c_char;
    "rocblas_get_version_string" version: fn(*mut c_char, usize) -> Code;
    "rocblas_gemm_strided_batched_ex" gemm: fn(
        Pointer, c_int, c_int, c_int, c_int, c_int,
        *const c_void, Pointer, c_int, c_int, i64, Pointer, c_int, c_int, i64,
        *const c_void, Pointer, c_int, c_int, i64, Pointer, c_int, c_int, i64,
        c_int, c_int, c_int, i32, c_uint
    ) -> Code;
}

impl Rocblas {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Rocblas> {
        static OPENED: Opened<Rocblas> = Opened::new("hip", "rocBLAS");
        // SAFETY: the types are those of the headers, which have been the same from ROCm 5 to 7.
        OPENED.get(|| unsafe { Rocblas::of(FILES.open()?) })
    }

    /// Its version, `4.2.1`.
    pub fn version(&self) -> String {
        let mut text = [0u8; 256];
        // SAFETY: there is room for as many characters as are said.
        let code = unsafe { (self.version)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        // What follows the three numbers names a build.
        let version: Vec<&str> = text.split('.').take(3).collect();
        if code == SUCCESS { version.join(".") } else { "of an unknown version".into() }
    }

    fn check(&self, what: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library has a text for every number, which stays.
        let text = unsafe { CStr::from_ptr((self.message)(code)) };
        Err(Error::backend("blas", format!("rocBLAS, {what}: {} ({code})", text.to_string_lossy())))
    }
}

/// `rocblas_datatype`.
fn data_type(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F16 => Some(150),
        DType::F32 => Some(151),
        DType::F64 => Some(152),
        DType::BF16 => Some(168),
        _ => None,
    }
}

/// `rocblas_operation`.
fn operation(transpose: Transpose) -> c_int {
    match transpose {
        Transpose::No => 111,
        Transpose::Yes => 112,
    }
}

/// The library on a stream.
pub struct Products {
    library: &'static Rocblas,
    stream: Arc<Stream>,
    /// Made by the first product: where rocBLAS has no kernels for a device, it ends the process.
    handle: Mutex<Option<Ready>>,
}

/// A handle, and the workspace that it knows.
struct Ready {
    handle: Pointer,
    workspace: Address,
}

// SAFETY: a handle of rocBLAS belongs to no thread, and is locked while it is used.
unsafe impl Send for Ready {}

impl Products {
    /// None where the library is missing.
    pub fn new(stream: &Arc<Stream>) -> Option<Products> {
        let opened = Rocblas::open().inspect_err(|error| tracing::debug!(%error, "our own kernels multiply matrices"));
        Some(Products { library: opened.ok()?, stream: stream.clone(), handle: Mutex::default() })
    }

    fn call(&self, what: &str, f: impl FnOnce(&Rocblas, Pointer) -> Code) -> Result<()> {
        let stream = self.stream.enter("blas")?;
        self.library.check(what, f(self.library, stream))
    }

    fn create(&self) -> Result<Ready> {
        let mut handle = null_mut();
        // SAFETY: the handle is written where it is, and is for the device that was entered.
        self.call("handle", |rocblas, _| unsafe { (rocblas.create)(&mut handle) })?;
        let made = Ready { handle, workspace: 0 };
        // SAFETY: the handle was made above, the stream lives until `self` is dropped.
        unsafe {
            self.call("stream", |rocblas, stream| (rocblas.set_stream)(handle, stream))?;
            self.call("atomics", |rocblas, _| (rocblas.set_atomics)(handle, NO_ATOMICS))?;
        }
        Ok(made)
    }
}

/// Whether all of a problem can be asked for: rocBLAS applies nothing to its results.
fn is_plain(problem: &MatmulProblem) -> bool {
    let leading = [problem.a.0, problem.b.0, problem.c, problem.d].map(|matrices| matrices.leading);
    let is_short = leading.into_iter().all(|leading| leading <= c_int::MAX as usize);
    is_short
        && !problem.has_bias
        && problem.aux.is_none()
        && problem.epilogue == Epilogue::Identity
        && problem.summed.is_none()
}

impl blas::Library for Products {
    fn workspace(&self) -> usize {
        WORKSPACE
    }

    fn has(&self, product: &Product) -> Result<bool> {
        let problem = &product.problem;
        Ok(is_plain(problem) && [problem.dtype, problem.output].into_iter().all(|dtype| data_type(dtype).is_some()))
    }

    fn multiply(&self, product: &Product) -> Result<bool> {
        let problem = &product.problem;
        let (Some(inputs), Some(outputs)) = (data_type(problem.dtype), data_type(problem.output)) else {
            return Ok(false);
        };
        if !is_plain(problem) {
            return Ok(false);
        }
        let mut ready = self.handle.lock();
        let ready = match &mut *ready {
            Some(ready) => ready,
            None => ready.insert(self.create()?),
        };
        if ready.workspace != product.workspace {
            let (handle, at) = (ready.handle, pointer(product.workspace));
            // SAFETY: the workspace is an allocation of as many bytes, which the caller keeps.
            self.call("workspace", |rocblas, _| unsafe { (rocblas.set_workspace)(handle, at, WORKSPACE) })?;
            ready.workspace = product.workspace;
        }
        let double = [product.alpha, product.beta];
        let single = double.map(|factor| factor as f32);
        let ([alpha, beta], compute): ([*const c_void; 2], _) = match problem.dtype {
            DType::F64 => (double.each_ref().map(|factor| from_ref(factor).cast()), DType::F64),
            _ => (single.each_ref().map(|factor| from_ref(factor).cast()), DType::F32),
        };
        let k = if problem.a.1 == Transpose::Yes { problem.a.0.rows } else { problem.a.0.columns };
        let [m, n, k, batches] = [problem.d.rows, problem.d.columns, k, problem.batches].map(|extent| extent as c_int);
        let leading = [problem.a.0, problem.b.0, problem.c, problem.d].map(|matrices| matrices.leading as c_int);
        let stride = [problem.a.0, problem.b.0, problem.c, problem.d].map(|matrices| matrices.batch as i64);
        let at = [product.a, product.b, product.c, product.d].map(pointer);
        self.stream.enter("blas")?;
        // SAFETY: the handle lives; the matrices are within allocations, which the caller sees to; the factors are read
        // before the call returns.
        let code = unsafe {
            (self.library.gemm)(
                ready.handle,
                operation(problem.a.1),
                operation(problem.b.1),
                m,
                n,
                k,
                alpha,
                at[0],
                inputs,
                leading[0],
                stride[0],
                at[1],
                inputs,
                leading[1],
                stride[1],
                beta,
                at[2],
                outputs,
                leading[2],
                stride[2],
                at[3],
                outputs,
                leading[3],
                stride[3],
                batches,
                data_type(compute).unwrap_or(inputs),
                STANDARD,
                0,
                0,
            )
        };
        if NO_KERNEL.contains(&code) {
            return Ok(false);
        }
        self.library.check("product", code).map(|()| true)
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if let Some(Ready { handle, .. }) = self.handle.get_mut() {
            let handle = *handle;
            // SAFETY: the handle was made in `create`, and nothing uses it any more.
            let _ = self.call("handle", |rocblas, _| unsafe { (rocblas.destroy)(handle) });
        }
    }
}
