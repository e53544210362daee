//! NVRTC, NVIDIA's compiler of CUDA C++: what is called of it.

// C: handles, and text that ends with 0.
#![allow(unsafe_code)]

use crate::library::{PLACES, open_with};
use isograd_core::Result;
use isograd_gpu::vendor::compiler::{Code, Compiled, Compiler, Program};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use std::ffi::{c_char, c_int};

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"],
        false => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
    },
    stem: if cfg!(windows) { "nvrtc64_" } else { "libnvrtc.so" },
    remedy: "pip install nvidia-cuda-nvrtc",
};
const BUILTINS: &str = if cfg!(windows) { "nvrtc-builtins64_" } else { "libnvrtc-builtins.so" };

library! {
    /// The compiler.
    pub struct Nvrtc;
    "nvrtcVersion" version: fn(*mut c_int, *mut c_int) -> Code;
    "nvrtcGetErrorString" message: fn(Code) -> *const c_char;
    "nvrtcCreateProgram" create: fn(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> Code;
    "nvrtcCompileProgram" compile: fn(Program, c_int, *const *const c_char) -> Code;
    "nvrtcDestroyProgram" destroy: fn(*mut Program) -> Code;
    "nvrtcGetProgramLogSize" log_size: fn(Program, *mut usize) -> Code;
    "nvrtcGetProgramLog" log: fn(Program, *mut c_char) -> Code;
    "nvrtcGetCUBINSize" cubin_size: fn(Program, *mut usize) -> Code;
    "nvrtcGetCUBIN" cubin: fn(Program, *mut c_char) -> Code;
}

impl Nvrtc {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Nvrtc> {
        static OPENED: Opened<Nvrtc> = Opened::new("cuda", "NVRTC");
        // SAFETY: the types are those of nvrtc.h, which have been the same since CUDA 11.2.
        OPENED.get(|| unsafe { Nvrtc::of(open_with(&FILES, BUILTINS)?) })
    }

    /// Its version, `13.0`.
    pub fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the numbers are written where they are.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// Compiles a source for one architecture, such as `sm_90`. The log has registers, local memory and spills. Errors: `Backend`, with the
    /// compiler's log.
    pub fn compile(&self, source: &str, architecture: &str) -> Result<Compiled> {
        let compiler = Compiler {
            name: "NVRTC",
            file: c"isograd.cu",
            message: self.message,
            create: self.create,
            compile: self.compile,
            destroy: self.destroy,
            log: (self.log_size, self.log),
            code: (self.cubin_size, self.cubin),
        };
        let architecture = format!("--gpu-architecture={architecture}");
        // Most programs call only some of what they include, which is a warning each.
        let options = [&*architecture, "--std=c++17", "--disable-warnings", "--ptxas-options=-v"];
        // SAFETY: the functions are NVRTC's.
        unsafe { compiler.compiled(source, &options, "--fmad=false") }
    }
}
