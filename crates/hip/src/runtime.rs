//! HIP's library, and what it says of devices.

// C: text that ends with 0, and numbers at places.
#![allow(unsafe_code)]

use crate::library::PLACES;
use crate::sys::{self, Code, Functions, ROCM_5, ROCM_6, SUCCESS, TEXT};
use crate::{Hiprtc, has_mma};
use isograd_core::{Error, Result};
use isograd_gpu::Limits;
use isograd_gpu::vendor::dynlib::{Files, Library, Opened};
use std::ffi::{CStr, c_char, c_int};

const FILES: Files = Files {
    places: &PLACES,
    names: match cfg!(windows) {
        true => &["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"],
        false => &["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"],
    },
    stem: if cfg!(windows) { "amdhip64" } else { "libamdhip64.so" },
    remedy: "AMD's ROCm 5 to 7 has it",
};

/// HIP's first generation of GPUs for which the kernels are written: the 9 of gfx90a.
const OLDEST: u32 = 9;

/// The library.
pub struct Runtime {
    pub functions: Functions,
    /// The functions are in it, and in some versions HIPRTC's.
    pub library: &'static Library,
}

/// A device as its driver describes it.
pub struct Described {
    pub limits: Limits,
    /// `gfx90a:sramecc+:xnack-`, as the compiler takes it.
    pub architecture: String,
}

impl Runtime {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    pub fn open() -> Result<&'static Runtime> {
        static OPENED: Opened<Runtime> = Opened::new("hip", "HIP");
        OPENED.get(|| {
            let library = FILES.open()?;
            let functions =
                Functions::new(library).map_err(|why| format!("{why}, which ROCm has from version 5 on"))?;
            Ok(Runtime { functions, library })
        })
    }

    /// Errors: `Backend`, with HIP's name, number and text, unless a call succeeded.
    pub fn check(&self, op: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(Code) -> *const c_char| {
            // SAFETY: HIP has a text for every number, which stays until the thread's next call.
            unsafe { CStr::from_ptr(get(code)) }.to_string_lossy().into_owned()
        };
        let (name, message) = (text(self.functions.error_name), text(self.functions.error_text));
        let message = if message == name { String::new() } else { format!(": {message}") };
        Err(Error::backend(op, format!("HIP: {name} ({code}){message}")))
    }

    /// How many devices there are. Errors: `Device` if there is none.
    pub fn count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the number is written where it is.
        let code = unsafe { (self.functions.count)(&mut count) };
        if code == sys::NO_DEVICE || (code == SUCCESS && count == 0) {
            return Err(Error::device("hip", "ROCm is there, but it knows no device; is AMD's kernel driver loaded?"));
        }
        self.check("hip", code)?;
        Ok(count as usize)
    }

    /// The version of ROCm's runtime, `6.4.43484`.
    pub fn version(&self) -> Result<String> {
        let mut version = 0;
        // SAFETY: the number is written where it is.
        self.check("hip", unsafe { (self.functions.version)(&mut version) })?;
        Ok(format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000))
    }

    /// Device `ordinal`. Errors: `Device` if the kernels do not run on it, `Backend`.
    pub fn describe(&self, ordinal: usize) -> Result<Described> {
        let there = self.count()?;
        if ordinal >= there {
            return Err(Error::device("hip", format!("device {ordinal} was asked for, there are {there}")));
        }
        // The older function's layout is that of ROCm 5 in later versions, too.
        let (ask, at) = match self.functions.properties_6 {
            Some(ask) => (ask, ROCM_6),
            None => (self.functions.properties, ROCM_5),
        };
        let mut bytes = vec![0u64; at.size / 8];
        // SAFETY: there is room for the properties of this layout, aligned as they are.
        self.check("hip", unsafe { ask(bytes.as_mut_ptr().cast(), ordinal as c_int) })?;
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = |at: usize| {
            let characters = bytes[at..at + TEXT].iter().take_while(|&&byte| byte != 0);
            String::from_utf8_lossy(&characters.copied().collect::<Vec<u8>>()).into_owned()
        };
        let (name, architecture) = (text(0), text(at.architecture));
        let memory = number::<8>(&bytes, at.memory) as usize;
        let refused = |why: String| Err(Error::device("hip", format!("device {ordinal}, {name}, {why}")));
        if generation(&architecture).is_none_or(|generation| generation < OLDEST) {
            return refused(format!(
                "is a {architecture:?}: the kernels run on gfx9 and later; HIP_VISIBLE_DEVICES chooses others"
            ));
        }
        if memory == 0 {
            return refused("has no memory; HIP_VISIBLE_DEVICES chooses others".into());
        }
        let local_memory = number::<8>(&bytes, at.shared) as usize;
        let given_memory = at.given.map_or(0, |at| number::<8>(&bytes, at) as usize).max(local_memory);
        let driver = format!("{architecture}, HIP {}, HIPRTC {}", self.version()?, Hiprtc::open()?.version());
        let limits = Limits {
            name,
            driver,
            memory,
            max_allocation: memory,
            max_group: number::<4>(&bytes, at.threads) as usize,
            local_memory,
            given_memory,
            wave: number::<4>(&bytes, at.wave) as usize,
            units: number::<4>(&bytes, at.units) as usize,
            has_f64: true,
            has_mma: has_mma(&architecture),
            turns_operands: false,
            has_wgmma: false,
            has_tile_maps: false,
            has_adds: false,
            is_coherent: false,
            has_shared_words: true,
            // A thread of 1024 has 64 registers from ROCm 5 on RDNA, and what is kept beyond these lies in memory.
            keeps_arrays: false,
        };
        Ok(Described { limits, architecture })
    }
}

/// An unsigned number of `N` bytes, as this machine has them.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let own = &bytes[at..at + N];
    let fold = |value: u64, byte: &u8| value << 8 | *byte as u64;
    if cfg!(target_endian = "little") { own.iter().rev().fold(0, fold) } else { own.iter().fold(0, fold) }
}

/// The 9 of gfx90a, the 11 of gfx1100: the last two characters are the variant's.
fn generation(architecture: &str) -> Option<u32> {
    let digits = architecture.split(':').next()?.strip_prefix("gfx")?;
    digits.get(..digits.len().checked_sub(2)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_read_off_names() {
        let known = ["gfx803", "gfx90a:sramecc+:xnack-", "gfx942", "gfx1036", "gfx1201"];
        assert_eq!(known.map(generation), [Some(8), Some(9), Some(9), Some(10), Some(12)]);
        assert_eq!(["", "gfx", "sm_90", "gfx9"].map(generation), [None; 4]);
    }
}
