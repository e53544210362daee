//! HIPRTC, AMD's compiler of HIP C++: what is called of it.

// C: handles, and text that ends with 0.
#![allow(unsafe_code)]

use crate::library::PLACES;
use crate::runtime::Runtime;
use isograd_core::{Error, Result};
use isograd_gpu::vendor::dynlib::{Files, Opened, library};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["hiprtc0700.dll", "hiprtc0604.dll", "hiprtc0602.dll", "hiprtc0507.dll"],
        false => &["libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5"],
    },
    stem: if cfg!(windows) { "hiprtc0" } else { "libhiprtc.so" },
    remedy: "ROCm has it",
};

/// A line of sources in which nothing is contracted.
const CONTRACT_OFF: &str = "CONTRACT_OFF";

type Program = *mut c_void;
type Code = c_int;

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

type Size = unsafe extern "C" fn(Program, *mut usize) -> Code;
type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> Code;

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
        let source_text = text(source)?;
        // Most programs call only some of what they include, which is a warning each.
        let mut options = vec![text(&format!("--offload-arch={architecture}"))?, c"-std=c++17".into(), c"-w".into()];
        if source.lines().any(|line| line == CONTRACT_OFF) {
            options.push(c"-ffp-contract=off".into());
        }
        let mut program = null_mut();
        let (text, name) = (source_text.as_ptr(), c"isograd.hip".as_ptr());
        // SAFETY: the text ends with 0 and outlives the program; there are no headers.
        let code = unsafe { (self.create)(&mut program, text, name, 0, null(), null()) };
        self.check(code)?;
        let compiled = self.run(program, &options);
        // SAFETY: the program was made above, and nothing uses it after this.
        unsafe { (self.destroy)(&mut program) };
        compiled
    }

    fn run(&self, program: Program, options: &[CString]) -> Result<Vec<u8>> {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the caller made the program; the options end with 0 and outlive the call.
        let compiled = self.check(unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) });
        compiled.map_err(|error| {
            let log = self.bytes(program, self.log_size, self.log);
            let log = String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches('\0').to_string();
            Error::backend("compile", format!("{}\n{log}", error.message()))
        })?;
        self.bytes(program, self.code_size, self.code)
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
        Err(Error::backend("compile", format!("HIPRTC: {} ({code})", message.to_string_lossy())))
    }
}

fn text(source: &str) -> Result<CString> {
    CString::new(source).map_err(|_| Error::backend("compile", "the source has a byte 0"))
}
