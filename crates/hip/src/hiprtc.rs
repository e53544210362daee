//! HIPRTC, AMD's compiler of HIP C++: what is called of it.

// C: handles, and text that ends with 0.
#![allow(unsafe_code)]

use crate::library::PLACES;
use crate::runtime::Runtime;
use isograd_core::Result;
use isograd_gpu::vendor::compiler::{Code, Compiler, Program};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use std::ffi::{c_char, c_int};

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["hiprtc0700.dll", "hiprtc0604.dll", "hiprtc0602.dll", "hiprtc0507.dll"],
        false => &["libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5"],
    },
    stem: if cfg!(windows) { "hiprtc0" } else { "libhiprtc.so" },
    remedy: "ROCm has it",
};

library! {
    /// The compiler.
    pub struct Hiprtc;
    "hiprtcVersion" version: fn(*mut c_int, *mut c_int) -> Code;
    "hiprtcGetErrorString" message: fn(Code) -> *const c_char;
    "hiprtcCreateProgram" create: fn(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> Code;
    "hiprtcCompileProgram" compile: fn(Program, c_int, *const *const c_char) -> Code;
    "hiprtcDestroyProgram" destroy: fn(*mut Program) -> Code;
    "hiprtcGetProgramLogSize" log_size: fn(Program, *mut usize) -> Code;
    "hiprtcGetProgramLog" log: fn(Program, *mut c_char) -> Code;
    "hiprtcGetCodeSize" code_size: fn(Program, *mut usize) -> Code;
    "hiprtcGetCode" code: fn(Program, *mut c_char) -> Code;
}

impl Hiprtc {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Hiprtc> {
        static OPENED: Opened<Hiprtc> = Opened::new("hip", "HIPRTC");
        OPENED.get(|| {
            let hip = Runtime::open().map_err(|error| error.message().to_string())?;
            match FILES.open() {
                // SAFETY: the types are those of the headers, which have been the same from ROCm 5 to 7.
                Ok(library) => unsafe { Hiprtc::of(library) },
                // Some of ROCm 5 have it in HIP's library.
                // SAFETY: as above.
                Err(why) => unsafe { Hiprtc::of(hip.library) }.map_err(|_| why),
            }
        })
    }

    /// Its version, `9.0`, which is not ROCm's.
    pub fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the numbers are written where they are.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// Compiles a source for one architecture, such as `gfx90a:sramecc+:xnack-`. Errors: `Backend`, with the compiler's log.
    pub fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>> {
        let compiler = Compiler {
            name: "HIPRTC",
            file: c"isograd.hip",
            message: self.message,
            create: self.create,
            compile: self.compile,
            destroy: self.destroy,
            log: (self.log_size, self.log),
            code: (self.code_size, self.code),
        };
        let architecture = format!("--offload-arch={architecture}");
        // Most programs call only some of what they include, which is a warning each.
        let options = [&*architecture, "-std=c++17", "-w"];
        // SAFETY: the functions are HIPRTC's.
        Ok(unsafe { compiler.compiled(source, &options, "-ffp-contract=off") }?.code)
    }
}
