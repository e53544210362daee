//! HIP's types, numbers and functions as far as they are used here, those of ROCm 5 to 7.
//!
//! hip-sys has them too, for ROCm 5, but links `libamdhip64`: a program with it does not start without ROCm, and is not built
//! without its headers. So they are declared here, and with the feature `hip-sys` compared with its.

// C: handles, and functions that are found by name.
#![allow(unsafe_code)]

use isograd_gpu::vendor::dynlib::{Library, library};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What functions return, `hipError_t`.
pub type Code = c_int;
/// A stream, an event, a module, an address in device memory.
pub type Pointer = *mut c_void;

/// `hipSuccess`.
pub const SUCCESS: Code = 0;
/// `hipErrorOutOfMemory`.
pub const OUT_OF_MEMORY: Code = 2;
/// `hipErrorNoDevice`.
pub const NO_DEVICE: Code = 100;
/// `hipErrorNotReady`.
pub const NOT_READY: Code = 600;
/// `hipEventDisableTiming`.
pub const WITHOUT_TIME: c_uint = 2;
/// `hipStreamNonBlocking`: it does not wait for the default stream.
pub const NON_BLOCKING: c_uint = 1;
/// `hipStreamCaptureModeRelaxed`.
pub const RELAXED: c_int = 2;

/// Where fields of `hipDeviceProp_t` lie, which begins with the name, 256 characters.
pub struct Properties {
    /// All of it, a multiple of 8.
    pub size: usize,
    /// `totalGlobalMem`, a `size_t`.
    pub memory: usize,
    /// `sharedMemPerBlock`, a `size_t`.
    pub shared: usize,
    /// `warpSize`.
    pub wave: usize,
    /// `maxThreadsPerBlock`.
    pub threads: usize,
    /// `multiProcessorCount`.
    pub units: usize,
    /// `gcnArchName`, 256 characters.
    pub architecture: usize,
    /// `sharedMemPerBlockOptin`, a `size_t`, where there is one.
    pub given: Option<usize>,
}

/// Characters of a text in the properties.
pub const TEXT: usize = 256;

/// What `hipGetDeviceProperties` fills in.
pub const ROCM_5: Properties = Properties {
    size: 792,
    memory: 256,
    shared: 264,
    wave: 276,
    threads: 280,
    units: 336,
    architecture: 396,
    given: None,
};
/// What `hipGetDevicePropertiesR0600` fills in, which ROCm 6 and 7 have.
pub const ROCM_6: Properties = Properties {
    size: 1472,
    memory: 288,
    shared: 296,
    wave: 308,
    threads: 320,
    units: 388,
    architecture: 1160,
    given: Some(696),
};

library! {
    /// HIP's functions.
    pub struct Functions;
    "hipGetErrorName" error_name: fn(Code) -> *const c_char;
    "hipGetErrorString" error_text: fn(Code) -> *const c_char;
    "hipRuntimeGetVersion" version: fn(*mut c_int) -> Code;
    "hipGetDeviceCount" count: fn(*mut c_int) -> Code;
    "hipSetDevice" set_device: fn(c_int) -> Code;
    "hipGetDeviceProperties" properties: fn(*mut c_void, c_int) -> Code;
    "hipGetDevicePropertiesR0600" properties_6 [optional]: fn(*mut c_void, c_int) -> Code;
    "hipMalloc" allocate: fn(*mut Pointer, usize) -> Code;
    "hipFree" free: fn(Pointer) -> Code;
    "hipMemcpyHtoDAsync" upload: fn(Pointer, *const c_void, usize, Pointer) -> Code;
    "hipMemcpyDtoHAsync" download: fn(*mut c_void, Pointer, usize, Pointer) -> Code;
    "hipMemcpyDtoDAsync" copy: fn(Pointer, Pointer, usize, Pointer) -> Code;
    "hipMemsetD8Async" fill: fn(Pointer, u8, usize, Pointer) -> Code;
    "hipStreamCreateWithFlags" create_stream: fn(*mut Pointer, c_uint) -> Code;
    "hipStreamDestroy" destroy_stream: fn(Pointer) -> Code;
    "hipStreamSynchronize" synchronize: fn(Pointer) -> Code;
    "hipStreamWaitEvent" wait_event [optional]: fn(Pointer, Pointer, c_uint) -> Code;
    "hipStreamBeginCapture" begin_capture [optional]: fn(Pointer, c_int) -> Code;
    "hipStreamEndCapture" end_capture [optional]: fn(Pointer, *mut Pointer) -> Code;
    "hipEventCreateWithFlags" create_event: fn(*mut Pointer, c_uint) -> Code;
    "hipEventDestroy" destroy_event: fn(Pointer) -> Code;
    "hipEventRecord" record_event: fn(Pointer, Pointer) -> Code;
    "hipEventQuery" query_event [optional]: fn(Pointer) -> Code;
    "hipEventSynchronize" synchronize_event: fn(Pointer) -> Code;
    "hipEventElapsedTime" elapsed: fn(*mut f32, Pointer, Pointer) -> Code;
    "hipGraphInstantiate" instantiate [optional]: fn(*mut Pointer, Pointer, *mut Pointer, *mut c_char, usize) -> Code;
    "hipGraphLaunch" launch_graph [optional]: fn(Pointer, Pointer) -> Code;
    "hipGraphDestroy" destroy_graph [optional]: fn(Pointer) -> Code;
    "hipGraphExecDestroy" destroy_executable [optional]: fn(Pointer) -> Code;
    "hipModuleLoadData" load: fn(*mut Pointer, *const c_void) -> Code;
    "hipModuleUnload" unload: fn(Pointer) -> Code;
    "hipModuleGetFunction" entry: fn(*mut Pointer, Pointer, *const c_char) -> Code;
    "hipModuleLaunchKernel" launch: fn(
        Pointer, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Pointer, *mut *mut c_void, *mut *mut c_void
    ) -> Code;
}

impl Functions {
    /// The functions of HIP's library. The error names one that is missing.
    pub fn new(library: &'static Library) -> Result<Functions, String> {
        // SAFETY: the types are those of the headers, which have been the same from ROCm 5 to 7.
        unsafe { Functions::of(library) }
    }
}

/// Fails to compile where hip-sys says otherwise.
#[cfg(feature = "hip-sys")]
const _: () = {
    use hip_sys::hiprt::{hipDeviceProp_t as Theirs, hipError_t as Error, hipStream_t, hipStreamCaptureMode as Mode};
    use std::mem::offset_of;

    assert!(size_of::<Code>() == size_of::<Error>() && size_of::<Pointer>() == size_of::<hipStream_t>());
    assert!(SUCCESS == Error::hipSuccess as Code && OUT_OF_MEMORY == Error::hipErrorOutOfMemory as Code);
    assert!(NO_DEVICE == Error::hipErrorNoDevice as Code && NON_BLOCKING == hip_sys::hiprt::hipStreamNonBlocking);
    assert!(RELAXED == Mode::hipStreamCaptureModeRelaxed as c_int);
    assert!(ROCM_5.size == size_of::<Theirs>() && offset_of!(Theirs, name) == 0);
    assert!(ROCM_5.memory == offset_of!(Theirs, totalGlobalMem));
    assert!(ROCM_5.shared == offset_of!(Theirs, sharedMemPerBlock));
    assert!(ROCM_5.wave == offset_of!(Theirs, warpSize));
    assert!(ROCM_5.threads == offset_of!(Theirs, maxThreadsPerBlock));
    assert!(ROCM_5.units == offset_of!(Theirs, multiProcessorCount));
    assert!(ROCM_5.architecture == offset_of!(Theirs, gcnArchName));
};
