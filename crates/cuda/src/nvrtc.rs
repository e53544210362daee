//! NVRTC, NVIDIA's compiler of CUDA C++: what is called of it.

// C: handles, and text that ends with 0.
#![allow(unsafe_code)]

use crate::library::{PLACES, open_with};
use isograd_core::{Error, Result};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

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

/// A line of sources in which nothing is contracted: CUDA C++ has no pragma for that, but the compiler an option.
const CONTRACT_OFF: &str = "CONTRACT_OFF";

type Program = *mut c_void;
type Code = c_int;

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

/// What became of a source.
pub struct Compiled {
    /// The machine's code.
    pub cubin: Vec<u8>,
    /// What the compiler says of it: registers, local memory, spills.
    pub log: String,
}

type Size = unsafe extern "C" fn(Program, *mut usize) -> Code;
type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> Code;

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

    /// Compiles a source for one architecture, such as `sm_90`. Errors: `Backend`, with the compiler's log.
    pub fn compile(&self, source: &str, architecture: &str) -> Result<Compiled> {
        let source_text = text(source)?;
        let architecture = format!("--gpu-architecture={architecture}");
        // Most programs call only some of what they include, which is a warning each.
        let fixed = ["--std=c++17", "--disable-warnings", "--ptxas-options=-v"];
        let mut options = vec![text(&architecture)?];
        options.extend(fixed.map(text).into_iter().collect::<Result<Vec<_>>>()?);
        if source.lines().any(|line| line == CONTRACT_OFF) {
            options.push(text("--fmad=false")?);
        }
        let mut program = null_mut();
        // SAFETY: the text ends with 0 and outlives the program; there are no headers.
        let code =
            unsafe { (self.create)(&mut program, source_text.as_ptr(), c"isograd.cu".as_ptr(), 0, null(), null()) };
        self.check(code)?;
        let compiled = self.run(program, &options);
        // SAFETY: the program was made above, and nothing uses it after this.
        unsafe { (self.destroy)(&mut program) };
        compiled
    }

    fn run(&self, program: Program, options: &[CString]) -> Result<Compiled> {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the caller made the program; the options end with 0 and outlive the call.
        let code = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let log = self.bytes(program, self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        match self.check(code) {
            Ok(()) => Ok(Compiled { cubin: self.bytes(program, self.cubin_size, self.cubin)?, log }),
            Err(error) => Err(Error::backend("compile", format!("{}\n{log}", error.message()))),
        }
    }

    fn bytes(&self, program: Program, size: Size, get: Bytes) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is whole, and the buffer has the size that the library asks for.
        unsafe {
            self.check(size(program, &mut bytes))?;
            let mut buffer = vec![0u8; bytes];
            self.check(get(program, buffer.as_mut_ptr().cast()))?;
            Ok(buffer)
        }
    }

    fn check(&self, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library has a text for every number, which stays.
        let message = unsafe { CStr::from_ptr((self.message)(code)) };
        Err(Error::backend("compile", format!("NVRTC: {} ({code})", message.to_string_lossy())))
    }
}

fn text(source: &str) -> Result<CString> {
    CString::new(source).map_err(|_| Error::backend("compile", "the source has a byte 0"))
}
