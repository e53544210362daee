//! rocBLAS, AMD's library of matrix products: what is called of it.

// C: handles, and matrices without types.
#![allow(unsafe_code)]

use crate::driver::{Stream, pointer};
use crate::library::{self, PLACES};
use crate::sys::{Pointer, functions};
use isograd_core::ops::Transpose;
use isograd_core::{DType, Error, Result};
use isograd_gpu::Address;
use isograd_gpu::driver::blas::{self, Epilogue, Form, Product};
use isograd_gpu::vendor::dynlib::Files;
use libloading::Library;
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, OnceLock};

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

functions! {
    /// rocBLAS's functions.
    Functions
    {
        rocblas_create_handle(*mut Pointer) -> Code;
        rocblas_destroy_handle(Pointer) -> Code;
        rocblas_set_stream(Pointer, Pointer) -> Code;
        rocblas_set_atomics_mode(Pointer, c_int) -> Code;
        rocblas_set_workspace(Pointer, Pointer, usize) -> Code;
        rocblas_status_to_string(Code) -> *const c_char;
        rocblas_get_version_string(*mut c_char, usize) -> Code;
        rocblas_gemm_strided_batched_ex(
            Pointer, c_int, c_int, c_int, c_int, c_int,
            *const c_void, Pointer, c_int, c_int, i64, Pointer, c_int, c_int, i64,
            *const c_void, Pointer, c_int, c_int, i64, Pointer, c_int, c_int, i64,
            c_int, c_int, c_int, i32, c_uint
        ) -> Code;
    }
    {}
}

/// The library.
pub struct Rocblas {
    functions: Functions,
    // The functions are in it.
    _library: Library,
}

impl Rocblas {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Rocblas> {
        static OPENED: OnceLock<std::result::Result<Rocblas, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| {
            let library = library::open(&FILES)?;
            // SAFETY: the library is rocBLAS, and is kept.
            let functions = unsafe { Functions::of(&library) }.map_err(|name| format!("it has no {name}"))?;
            Ok(Rocblas { functions, _library: library })
        });
        opened.as_ref().map_err(|why| Error::device("hip", format!("rocBLAS cannot be opened: {why}")))
    }

    /// Its version, `4.2.1`.
    pub fn version(&self) -> String {
        let mut text = [0u8; 256];
        // SAFETY: there is room for as many characters as are said.
        let code = unsafe { (self.functions.rocblas_get_version_string)(text.as_mut_ptr().cast(), text.len()) };
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
        let text = unsafe { CStr::from_ptr((self.functions.rocblas_status_to_string)(code)) };
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

    fn call(&self, what: &str, f: impl FnOnce(&Functions, Pointer) -> Code) -> Result<()> {
        let stream = self.stream.enter("blas")?;
        self.library.check(what, f(&self.library.functions, stream))
    }

    fn create(&self) -> Result<Ready> {
        let mut handle = null_mut();
        // SAFETY: the handle is written where it is, and is for the device that was entered.
        self.call("handle", |rocblas, _| unsafe { (rocblas.rocblas_create_handle)(&mut handle) })?;
        let made = Ready { handle, workspace: 0 };
        // SAFETY: the handle was made above, the stream lives until `self` is dropped.
        unsafe {
            self.call("stream", |rocblas, stream| (rocblas.rocblas_set_stream)(handle, stream))?;
            self.call("atomics", |rocblas, _| (rocblas.rocblas_set_atomics_mode)(handle, NO_ATOMICS))?;
        }
        Ok(made)
    }
}

/// Whether all of a form can be asked for: rocBLAS applies nothing to its results.
fn is_plain(form: &Form) -> bool {
    let leading = [form.a.0, form.b.0, form.c, form.d].map(|matrices| matrices.leading);
    let is_short = leading.into_iter().all(|leading| leading <= c_int::MAX as usize);
    is_short && !form.has_bias && form.aux.is_none() && form.epilogue == Epilogue::Identity && form.summed.is_none()
}

impl blas::Library for Products {
    fn workspace(&self) -> usize {
        WORKSPACE
    }

    fn has(&self, product: &Product) -> Result<bool> {
        let form = &product.form;
        Ok(is_plain(form) && [form.dtype, form.output].into_iter().all(|dtype| data_type(dtype).is_some()))
    }

    fn multiply(&self, product: &Product) -> Result<bool> {
        let form = &product.form;
        let (Some(inputs), Some(outputs)) = (data_type(form.dtype), data_type(form.output)) else { return Ok(false) };
        if !is_plain(form) {
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
            self.call("workspace", |rocblas, _| unsafe { (rocblas.rocblas_set_workspace)(handle, at, WORKSPACE) })?;
            ready.workspace = product.workspace;
        }
        let double = [product.alpha, product.beta];
        let single = double.map(|factor| factor as f32);
        let ([alpha, beta], compute): ([*const c_void; 2], _) = match form.dtype {
            DType::F64 => (double.each_ref().map(|factor| from_ref(factor).cast()), DType::F64),
            _ => (single.each_ref().map(|factor| from_ref(factor).cast()), DType::F32),
        };
        let k = if form.a.1 == Transpose::Yes { form.a.0.rows } else { form.a.0.columns };
        let [m, n, k, batches] = [form.d.rows, form.d.columns, k, form.batches].map(|extent| extent as c_int);
        let leading = [form.a.0, form.b.0, form.c, form.d].map(|matrices| matrices.leading as c_int);
        let stride = [form.a.0, form.b.0, form.c, form.d].map(|matrices| matrices.batch as i64);
        let at = [product.a, product.b, product.c, product.d].map(pointer);
        self.stream.enter("blas")?;
        // SAFETY: the handle lives; the matrices are within allocations, which the caller sees to; the factors are read
        // before the call returns.
        let code = unsafe {
            (self.library.functions.rocblas_gemm_strided_batched_ex)(
                ready.handle,
                operation(form.a.1),
                operation(form.b.1),
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
            let _ = self.call("handle", |rocblas, _| unsafe { (rocblas.rocblas_destroy_handle)(handle) });
        }
    }
}
