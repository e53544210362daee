//! Every kernel compiles in every dtype it runs on, and for two more generations of GPUs in two of them:
//! `nvrtc::sm_90::softmax_rows`.
//!
//! A machine without NVRTC ignores this; `ISOGRAD_REQUIRE=nvrtc` makes it a failure.

use isograd_core::DType;
use isograd_cuda::{DIALECT, Nvrtc};
use isograd_gpu::table::{Entry, entries};
use libtest_mimic::{Arguments, Failed, Trial};

/// Ampere, Hopper and Blackwell, and in how many dtypes of the list below each kernel is compiled for them.
const ARCHITECTURES: [(&str, usize); 3] = [("sm_80", 2), ("sm_90", DTYPES.len()), ("sm_100", 2)];

const DTYPES: [DType; 8] =
    [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool];

fn main() {
    let arguments = Arguments::from_args();
    let trials = match Nvrtc::open() {
        Ok(nvrtc) => trials(nvrtc),
        Err(error) => {
            let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|name| name.trim() == "nvrtc");
            let missing = move || Err(Failed::from(error.to_string()));
            vec![Trial::test("nvrtc::library", missing).with_ignored_flag(!is_required)]
        }
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(nvrtc: &'static Nvrtc) -> Vec<Trial> {
    let all = entries(&DIALECT).expect("the kernels' files are in the program");
    let mut trials = Vec::new();
    for (architecture, dtypes) in ARCHITECTURES {
        trials.extend(all.iter().cloned().map(|entry| {
            let name = format!("nvrtc::{architecture}::{}", entry.name);
            Trial::test(name, move || compile(nvrtc, &entry, architecture, dtypes))
        }));
    }
    trials
}

/// Compiles a kernel in the first so many dtypes that it runs on; one that runs on none is a failure.
fn compile(nvrtc: &Nvrtc, entry: &Entry, architecture: &str, dtypes: usize) -> Result<(), Failed> {
    let sources = DTYPES.into_iter().filter_map(|dtype| Some((dtype, entry.source(&DIALECT, dtype).ok()?)));
    let mut compiled = 0;
    for (dtype, source) in sources.take(dtypes) {
        nvrtc.compile(&source, architecture).map_err(|error| format!("{dtype}: {error}"))?;
        compiled += 1;
    }
    if compiled == 0 { Err("it has no source".into()) } else { Ok(()) }
}
