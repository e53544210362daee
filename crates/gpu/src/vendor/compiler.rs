//! The compilers NVRTC and HIPRTC, whose functions have the same types.

// C: handles, and text that ends with 0.
#![allow(unsafe_code)]

use isograd_core::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A program of a compiler.
pub type Program = *mut c_void;
/// The result of a call, 0 if it has succeeded.
pub type Code = c_int;

/// The functions of a compiler.
#[allow(clippy::type_complexity)]
pub struct Compiler {
    /// The compiler's name in errors.
    pub name: &'static str,
    /// The name of sources in the compiler's log.
    pub file: &'static CStr,
    /// The text of a code.
    pub message: unsafe extern "C" fn(Code) -> *const c_char,
    /// Makes a program of a source, a name, and the texts and names of headers.
    pub create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    /// Compiles a program with options.
    pub compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    /// Frees a program.
    pub destroy: unsafe extern "C" fn(*mut Program) -> Code,
    /// The log of a program.
    pub log: Text,
    /// The machine code of a program.
    pub code: Text,
}

/// The functions that give the size of a text, and its bytes.
pub type Text = (unsafe extern "C" fn(Program, *mut usize) -> Code, unsafe extern "C" fn(Program, *mut c_char) -> Code);

/// A compiled source.
pub struct Compiled {
    /// The machine code.
    pub code: Vec<u8>,
    /// The compiler's log: with the right options, registers, local memory and spills.
    pub log: String,
}

impl Compiler {
    /// Compiles a source. `uncontracted` is added to the options for one that has `CONTRACT_OFF` as a line: C++ has no pragma that forbids
    /// the contraction of products and sums. Errors: `Backend`, with the compiler's log.
    ///
    /// # Safety
    /// The functions are those of one compiler, and do what their documentation says.
    pub unsafe fn compiled(&self, source: &str, options: &[&str], uncontracted: &str) -> Result<Compiled> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| Error::backend("compile", "the source or an option has a byte 0"))
        };
        let last = source.lines().any(|line| line == "CONTRACT_OFF").then_some(uncontracted);
        let options: Vec<CString> = options.iter().copied().chain(last).map(text).collect::<Result<_>>()?;
        let (source, mut program) = (text(source)?, null_mut());
        // SAFETY: the text ends with 0 and outlives the program; there are no headers.
        let code = unsafe { (self.create)(&mut program, source.as_ptr(), self.file.as_ptr(), 0, null(), null()) };
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
        let log = self.bytes(program, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
        match self.check(code) {
            Ok(()) => Ok(Compiled { code: self.bytes(program, self.code)?, log }),
            Err(error) => Err(Error::backend("compile", format!("{}\n{log}", error.message()))),
        }
    }

    fn bytes(&self, program: Program, (size, get): Text) -> Result<Vec<u8>> {
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
        Err(Error::backend("compile", format!("{}: {} ({code})", self.name, message.to_string_lossy())))
    }
}
