//! The driver over opencl3.

// OpenCL is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use crate::DIALECT;
use cl3::OpenClRuntime;
use isograd_core::{Error, Kind, Result};
use isograd_gpu::driver::list::{List, Work};
use isograd_gpu::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits};
use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, CommandQueue};
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, Device};
use opencl3::error_codes::{CL_SUCCESS, ClError, DLOPEN_FUNCTION_NOT_AVAILABLE, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::event::{CL_COMPLETE, Event};
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, ClMem, svm_alloc, svm_free,
};
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_int, cl_uint};
use parking_lot::{Mutex, MutexGuard};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Devices of this vendor answer questions of their own.
const WARP_SIZE_NV: cl_uint = 0x4003;
const WAVEFRONT_WIDTH_AMD: cl_uint = 0x4043;
const SUB_GROUP_SIZES_INTEL: cl_uint = 0x4108;
const REGISTERS_NV: cl_uint = 0x4002;
const COMPUTE_MAJOR_NV: cl_uint = 0x4000;
const COMPUTE_MINOR_NV: cl_uint = 0x4001;

/// Bytes that are read by way of memory which the device writes without the host's help.
const LANDING: usize = 64 << 10;

/// An OpenCL device with one queue, in order. The compiler's options are those that exact arithmetic needs, and what
/// `ISOGRAD_OPENCL_OPTIONS` adds.
pub struct OpenCl {
    // Released before the context.
    staged: Mutex<Vec<(Event, Vec<u8>)>>,
    landing: Mutex<Landing>,
    list: List,
    queue: CommandQueue,
    context: Context,
    device: Device,
    limits: Limits,
    options: String,
    /// Registers of a multiprocessor, where the compiler can be told how many of them a thread may have.
    registers: Option<usize>,
    /// PoCL keeps what it compiled itself, compiles once more for what it gives away, and bears several threads.
    is_pocl: bool,
}

/// [`LANDING`] bytes of the host's that stay mapped: what is read to them needs no memory of the driver's on its way.
struct Landing {
    buffer: Buffer<u8>,
    mapped: *mut u8,
}

// SAFETY: the mapping is the buffer's own, and whoever holds the lock alone uses it.
unsafe impl Send for Landing {}

impl Landing {
    fn new(context: &Context, queue: &CommandQueue) -> opencl3::Result<Landing> {
        let (flags, write) = (CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, CL_MAP_READ | CL_MAP_WRITE);
        let mut mapped = null_mut();
        // SAFETY: there is no memory of the host's to take; the buffer has the bytes that are mapped.
        let buffer = unsafe { Buffer::<u8>::create(context, flags, LANDING, null_mut())? };
        // SAFETY: as above.
        unsafe { queue.enqueue_map_buffer(&buffer, CL_BLOCKING, write, 0, LANDING, &mut mapped, &[])? };
        Ok(Landing { buffer, mapped: mapped.cast() })
    }
}

fn failed(op: &'static str) -> impl Fn(ClError) -> Error {
    move |e| Error::backend(op, format!("OpenCL: {e}"))
}

/// What a device can do. Errors: `Device` if it has no coarse-grained shared virtual memory.
pub fn limits(device: &Device) -> Result<Limits> {
    let ask = failed("opencl");
    let name = device.name().map_err(&ask)?;
    let svm = device.svm_mem_capability();
    if svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER == 0 {
        return Err(Error::device("opencl", format!("{name} has no shared virtual memory, which isograd needs")));
    }
    let extensions = device.extensions().map_err(&ask)?;
    let wave = match () {
        _ if has_sub_groups(device).map_err(&ask)? => sub_group_size(device),
        _ if extensions.contains("cl_nv_device_attribute_query") => number(device, WARP_SIZE_NV),
        _ if extensions.contains("cl_amd_device_attribute_query") => number(device, WAVEFRONT_WIDTH_AMD),
        _ => None,
    };
    let compute = compute_capability(device);
    let is_coherent = compute.is_some_and(|compute| compute >= 70);
    let local_memory = device.local_mem_size().map_err(&ask)? as usize;
    Ok(Limits {
        driver: format!("{}, driver {}", device.version().map_err(&ask)?, device.driver_version().map_err(&ask)?),
        memory: device.global_mem_size().map_err(&ask)? as usize,
        max_allocation: device.max_mem_alloc_size().map_err(&ask)? as usize,
        max_group: device.max_work_group_size().map_err(&ask)?,
        local_memory,
        given_memory: local_memory,
        wave: wave.unwrap_or(1).max(1),
        units: device.max_compute_units().map_err(&ask)? as usize,
        has_mma: compute.is_some_and(|compute| compute >= 80),
        has_wgmma: false,
        has_tile_maps: false,
        has_adds: false,
        is_coherent,
        // Not PoCL 3.1: with several groups, some launches of recurrent kernels left the elements of a group unwritten, for a reason that
        // is not known.
        has_shared_words: is_coherent,
        keeps_arrays: true,
        turns_operands: compute.is_some_and(|compute| compute >= 75),
        has_f64: extensions.contains("cl_khr_fp64"),
        name,
    })
}

/// What a device says of itself under a vendor's code.
fn number(device: &Device, code: cl_uint) -> Option<usize> {
    let bytes = device.get_data(code).ok()?;
    Some(u32::from_le_bytes(*bytes.first_chunk()?) as usize)
}

/// Ten times NVIDIA's number for a generation of hardware, such as 90 for 9.0.
fn compute_capability(device: &Device) -> Option<usize> {
    let is_nvidia = device.extensions().ok()?.contains("cl_nv_device_attribute_query");
    if is_nvidia { Some(10 * number(device, COMPUTE_MAJOR_NV)? + number(device, COMPUTE_MINOR_NV)?) } else { None }
}

fn registers(device: &Device) -> Option<usize> {
    let is_told = device.extensions().ok()?.contains("cl_nv_compiler_options");
    if is_told { number(device, REGISTERS_NV) } else { None }
}

/// The number that a source defines a name as, in the lines that it begins with.
fn defined(source: &str, name: &str) -> Option<usize> {
    let mut lines = source.lines().map_while(|line| line.strip_prefix("#define ")?.split_once(' '));
    lines.find(|&(defined, _)| defined == name)?.1.parse().ok()
}

/// Whether sub-groups exchange values, and have the size that a kernel asks for. PoCL 5.0 has both, and adds up wrong.
fn has_sub_groups(device: &Device) -> opencl3::Result<bool> {
    let extensions = device.extensions()?;
    let has = |extension| extensions.contains(extension);
    Ok(!is_pocl(device)? && has("cl_khr_subgroup_shuffle") && has("cl_intel_required_subgroup_size"))
}

/// True for the driver of processors by pocl.org.
pub(crate) fn is_pocl(device: &Device) -> opencl3::Result<bool> {
    Ok(device.version()?.contains("PoCL"))
}

/// The largest size of sub-groups up to that of the smallest group that a kernel has.
fn sub_group_size(device: &Device) -> Option<usize> {
    let bytes = device.get_data(SUB_GROUP_SIZES_INTEL).ok()?;
    let sizes = bytes.chunks_exact(size_of::<usize>()).filter_map(|b| Some(usize::from_le_bytes(b.try_into().ok()?)));
    sizes.filter(|&size| size <= 32).max()
}

/// Registers that a thread has at most in any case.
const MOST_REGISTERS: usize = 255;

/// What a kernel says that PoCL must not optimise.
const PLAIN_ON_POCL: &str = "#define PLAIN_ON_POCL";

/// Has PoCL leave out Clang's header of all functions, by what guards it, and `prelude.h` declare those that kernels call.
const OWN_DECLARATIONS: &str = "-D_OPENCL_H_ -DDECLARES_FUNCTIONS";

/// Held while a program is built: not every vendor's compiler bears several threads.
static COMPILER: Mutex<()> = Mutex::new(());

impl OpenCl {
    /// Opens a device. Errors: `Device`, `Backend`.
    pub fn new(device: &Device) -> Result<OpenCl> {
        let mut limits = limits(device)?;
        let ask = failed("opencl");
        let context = Context::from_device(device).map_err(&ask)?;
        let queue =
            CommandQueue::create_default_with_properties(&context, CL_QUEUE_PROFILING_ENABLE, 0).map_err(&ask)?;
        let exact = device.single_fp_config().map_err(&ask)? & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0;
        let mut options = if exact { "-cl-fp32-correctly-rounded-divide-sqrt" } else { "" }.to_string();
        if has_sub_groups(device).map_err(&ask)? && limits.wave > 1 {
            options = format!("{options} -cl-std=CL3.0 -DSUB_GROUP={}", limits.wave);
        }
        if let Some(compute) = compute_capability(device) {
            options = format!("{options} -DNV_COMPUTE={compute}");
        }
        let is_pocl = is_pocl(device).map_err(&ask)?;
        if is_pocl {
            // Clang counts its warnings on stderr.
            options += " -w";
        }
        match std::env::var("ISOGRAD_OPENCL_OPTIONS") {
            Ok(more) => options = format!("{options} {more}"),
            Err(_) if is_pocl && isograd_core::Device::few_launches() => options += " -cl-opt-disable",
            Err(_) => {}
        }
        limits.driver += &format!(", options {options}");
        let (device, registers) = (Device::new(device.id()), registers(device));
        let landing = Mutex::new(Landing::new(&context, &queue).map_err(&ask)?);
        Ok(OpenCl {
            staged: Mutex::default(),
            landing,
            list: List::default(),
            queue,
            context,
            device,
            limits,
            options,
            registers,
            is_pocl,
        })
    }

    /// What a thread holds that compiles.
    fn compiler(&self) -> Option<MutexGuard<'static, ()>> {
        (!self.is_pocl).then(|| COMPILER.lock())
    }

    /// The compiler's options for a source. What says how many groups shall run at once on a multiprocessor shares its
    /// registers among them; they are given out by eights.
    fn options_for(&self, source: &str) -> String {
        let mut options = self.options.clone();
        if self.is_pocl && source.contains(PLAIN_ON_POCL) {
            options += " -cl-opt-disable";
        }
        let together = defined(source, "AT_ONCE").zip(defined(source, "THREADS")).map(|(groups, of)| groups * of);
        if let Some((registers, threads)) = self.registers.zip(together) {
            let registers = registers / threads.max(1) / 8 * 8;
            if (1..MOST_REGISTERS).contains(&registers) {
                options += &format!(" -cl-nv-maxrregcount={registers}");
            }
        }
        options
    }

    /// Copies bytes between allocations of the context, or from one to the host's memory.
    ///
    /// # Safety
    ///
    /// Both starts have room for the bytes; one of the host stays as it is until the copy is complete.
    unsafe fn enqueue_copy(
        &self,
        op: &'static str,
        from: Address,
        to: *mut c_void,
        bytes: usize,
        is_waited_for: bool,
    ) -> Result<()> {
        let (queue, from) = (self.queue.get(), from as *const c_void);
        let blocking = if is_waited_for { CL_BLOCKING } else { CL_NON_BLOCKING };
        self.enqueue(op, |cl| cl.clEnqueueSVMMemcpy(queue, blocking, to, from, bytes, 0, null(), null_mut()))
    }

    /// Calls what enqueues without an event: with one, a device that notes when each begins and ends takes some microseconds
    /// more for it.
    fn enqueue(&self, op: &'static str, call: impl FnOnce(&OpenClRuntime) -> Option<cl_int>) -> Result<()> {
        let library = cl3::load_library().as_ref().map_err(|_| failed(op)(ClError(DLOPEN_RUNTIME_LOAD_FAILED)))?;
        match call(library).unwrap_or(DLOPEN_FUNCTION_NOT_AVAILABLE) {
            CL_SUCCESS => Ok(()),
            code => Err(failed(op)(ClError(code))),
        }
    }
}

impl Drop for OpenCl {
    fn drop(&mut self) {
        let landing = self.landing.get_mut();
        // SAFETY: the address is what the buffer was mapped to, and nobody has it any more.
        let _ = unsafe { self.queue.enqueue_unmap_mem_object(landing.buffer.get(), landing.mapped.cast(), &[]) };
        let _ = self.queue.finish();
    }
}

impl Driver for OpenCl {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the context outlives every allocation: `free` needs `self`.
        let memory = unsafe { svm_alloc(self.context.get(), CL_MEM_READ_WRITE, bytes, 0) };
        memory
            .map(|p| p as Address)
            .map_err(|_| Error::new(Kind::OutOfMemory, "allocate", format!("the device did not give {bytes} bytes")))
    }

    fn free(&self, address: Address) {
        // Work in the queue may still use the memory. If that fails, so will everything else.
        let _ = self.queue.finish();
        // SAFETY: the address came from `svm_alloc` in this context, and nothing in the queue uses it any more.
        let _ = unsafe { svm_free(self.context.get(), address as *mut c_void) };
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        if self.list.add(|| Work::Upload(to, bytes.to_vec())) {
            return Ok(());
        }
        self.upload_aside(to, bytes)
    }

    fn upload_aside(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut staged = self.staged.lock();
        staged.retain(|(event, _)| event.command_execution_status().is_ok_and(|s| s.0 != CL_COMPLETE));
        let (copy, queue) = (bytes.to_vec(), self.queue.get());
        let (from, to) = (copy.as_ptr().cast(), to as *mut c_void);
        // SAFETY: the target is an allocation of this context with room for the bytes, which the pool sees to. The source
        // lives in `staged` until the copy is complete.
        let event = unsafe {
            opencl3::command_queue::enqueue_svm_mem_cpy(queue, CL_NON_BLOCKING, to, from, copy.len(), 0, null())
        };
        staged.push((event.map(Event::new).map_err(|e| failed("upload")(ClError(e)))?, copy));
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.download_each(&mut [(from, bytes)])
    }

    fn download_each(&self, parts: &mut [(Address, &mut [u8])]) -> Result<()> {
        let op = "download";
        let bytes: usize = parts.iter().map(|(_, part)| part.len()).sum();
        let Some(last) = parts.len().checked_sub(1) else { return Ok(()) };
        if bytes > LANDING {
            return parts.iter_mut().try_for_each(|(from, part)| {
                // SAFETY: the source is within an allocation of this context, which the pool sees to; the call returns when
                // the bytes are there.
                unsafe { self.enqueue_copy(op, *from, part.as_mut_ptr().cast(), part.len(), true) }
            });
        }
        let landing = self.landing.lock();
        let froms: Vec<(Address, usize)> = parts.iter().map(|(from, part)| (*from, part.len())).collect();
        let enqueue = |i: usize, from, at, bytes| {
            // SAFETY: as above; there is room for all parts, and nobody else has the mapping. The queue is in order: when the
            // last one is there, all are.
            unsafe { self.enqueue_copy(op, from, landing.mapped.add(at).cast(), bytes, i == last) }
        };
        one_after_the_other(&froms, enqueue, || drop(self.queue.finish()))?;
        // SAFETY: so many bytes have been written, and nothing writes there before the lock is given back.
        let mut landed = unsafe { std::slice::from_raw_parts(landing.mapped, bytes) };
        for (_, part) in parts {
            let (own, others) = landed.split_at(part.len());
            part.copy_from_slice(own);
            landed = others;
        }
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        if self.list.add(|| Work::Copy(from, to, bytes)) {
            return Ok(());
        }
        // SAFETY: both are within allocations of this context, which the pool sees to.
        unsafe { self.enqueue_copy("copy", from, to as *mut c_void, bytes, false) }
    }

    fn fill(&self, at: Address, byte: u8, bytes: usize) -> Result<()> {
        if self.list.add(|| Work::Fill(at, byte, bytes)) {
            return Ok(());
        }
        let (queue, at, pattern) = (self.queue.get(), at as *mut c_void, [byte]);
        // The target is within an allocation of this context; the pattern is copied by the call.
        self.enqueue("fill", |cl| {
            cl.clEnqueueSVMMemFill(queue, at, pattern.as_ptr().cast(), 1, bytes, 0, null(), null_mut())
        })
    }

    fn compile(&self, source: &str) -> Result<(Handle, Option<Vec<u8>>)> {
        let op = "compile";
        let _one = self.compiler();
        let mut program = Program::create_from_source(&self.context, source).map_err(failed(op))?;
        let mut build = |options: &str| program.build(&[self.device.id()], options);
        let options = self.options_for(source);
        // A kernel of a program's own may call other functions than ours do.
        let is_built = self.is_pocl && build(&format!("{options} {OWN_DECLARATIONS}")).is_ok();
        if let Err(error) = if is_built { Ok(()) } else { build(&options) } {
            let log = program.get_build_log(self.device.id()).unwrap_or_default();
            return Err(Error::backend(op, format!("OpenCL: {error}\n{log}")));
        }
        if self.is_pocl {
            return Ok((Handle::new(program), None));
        }
        let binary = program.get_binaries().map_err(failed(op))?.into_iter().next();
        // A binary may be text that is compiled again when it is loaded, with the same options.
        let with_options = |binary: Vec<u8>| [options.as_bytes(), &[0], &binary].concat();
        Ok((Handle::new(program), binary.map(with_options)))
    }

    fn load(&self, binary: &[u8]) -> Result<Handle> {
        let op = "load";
        let parts = binary.iter().position(|&byte| byte == 0).map(|end| (&binary[..end], &binary[end + 1..]));
        let options = parts.and_then(|(options, binary)| Some((std::str::from_utf8(options).ok()?, binary)));
        let (options, binary) = options.ok_or_else(|| Error::backend(op, "the program has no options"))?;
        let _one = self.compiler();
        // SAFETY: OpenCL checks the binary's format itself; the cache has checked that it is what `compile` gave.
        let program = unsafe { Program::create_from_binary(&self.context, &[self.device.id()], &[binary]) };
        let mut program = program.map_err(failed(op))?;
        program.build(&[self.device.id()], options).map_err(failed(op))?;
        Ok(Handle::new(program))
    }

    fn entry(&self, program: &Handle, name: &str) -> Result<Handle> {
        let kernel = Kernel::create(program.get(), name).map_err(failed("load"))?;
        Ok(Handle::new(Mutex::new(kernel)))
    }

    fn launch(&self, entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], reached: &[Address]) -> Result<()> {
        if self.list.add(|| Work::launch(entry, geometry, arguments, reached)) {
            return Ok(());
        }
        let failed = |e: i32| failed("launch")(ClError(e));
        // Arguments belong to the kernel until it is enqueued.
        let kernel = entry.get::<Mutex<Kernel>>().lock();
        for (i, argument) in arguments.iter().enumerate() {
            // SAFETY: the host code writes the list that the kernel's source declares; addresses are within allocations
            // of this context.
            let set = unsafe {
                match argument {
                    Arg::Pointer(address) => opencl3::kernel::set_kernel_arg_svm_pointer(
                        kernel.get(),
                        i as cl_uint,
                        *address as *const c_void,
                    ),
                    Arg::Value(bytes) => {
                        opencl3::kernel::set_kernel_arg(kernel.get(), i as cl_uint, bytes.len(), bytes.as_ptr().cast())
                    }
                }
            };
            set.map_err(failed)?;
        }
        if !reached.is_empty() {
            let mut reached = reached.to_vec();
            reached.sort_unstable();
            reached.dedup();
            // SAFETY: the list is copied by the call; its addresses are allocations of this context.
            let told = unsafe {
                opencl3::kernel::set_kernel_exec_info(
                    kernel.get(),
                    opencl3::kernel::CL_KERNEL_EXEC_INFO_SVM_PTRS,
                    size_of_val(&reached[..]),
                    reached.as_ptr().cast(),
                )
            };
            told.map_err(failed)?;
        }
        let Geometry { groups: [x, y, z], threads, .. } = geometry;
        let (global, local) = ([x * threads, y, z], [threads, 1, 1]);
        let (queue, kernel, from) = (self.queue.get(), kernel.get(), null());
        // The arguments are set; the grid is what the kernel was written for.
        self.enqueue("launch", |cl| {
            let (global, local) = (global.as_ptr(), local.as_ptr());
            cl.clEnqueueNDRangeKernel(queue, kernel, 3, from, global, local, 0, null(), null_mut())
        })
    }

    fn record(&self) -> Result<Handle> {
        // SAFETY: an empty list of events to wait for.
        unsafe { self.queue.enqueue_marker_with_wait_list(&[]) }.map(Handle::new).map_err(failed("record"))
    }

    fn elapsed(&self, from: &Handle, to: &Handle) -> Result<f64> {
        let [from, to] = [from, to].map(Handle::get::<Event>);
        let op = failed("elapsed");
        to.wait().map_err(&op)?;
        let (start, end) = (from.profiling_command_end().map_err(&op)?, to.profiling_command_end().map_err(&op)?);
        Ok(end.saturating_sub(start) as f64 * 1e-9)
    }

    fn synchronize(&self) -> Result<()> {
        self.queue.finish().map_err(failed("synchronize"))
    }

    fn records(&self) -> bool {
        true
    }

    fn begin_capture(&self) -> Result<bool> {
        self.list.begin();
        Ok(true)
    }

    fn end_capture(&self) -> Result<Handle> {
        self.list.end()
    }

    fn replay(&self, graph: &Handle) -> Result<()> {
        List::replay(graph, self)
    }
}

/// Enqueues copies into one buffer, each behind those before it: its number, where it is from, its place in the buffer and its bytes. After an
/// error `wait` waits for those that are on their way, so that the buffer is free.
fn one_after_the_other(
    copies: &[(Address, usize)],
    enqueue: impl Fn(usize, Address, usize, usize) -> Result<()>,
    wait: impl FnOnce(),
) -> Result<()> {
    let mut at = 0;
    let mut copies = copies.iter().enumerate();
    let enqueued = copies.try_for_each(|(i, &(from, bytes))| {
        at += bytes;
        enqueue(i, from, at - bytes, bytes)
    });
    enqueued.inspect_err(|_| wait())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    #[test]
    fn copies_on_their_way_are_waited_for_if_a_later_one_fails() {
        let copies = [(7, 100), (8, 0), (9, 20), (10, 1)];
        for failing in [0, 2, 4] {
            let (enqueued, is_free) = (RefCell::new(Vec::new()), Cell::new(false));
            let enqueue = |i, from, at, bytes| {
                if i == failing {
                    return Err(Error::backend("download", "a failure"));
                }
                enqueued.borrow_mut().push((from, at, bytes));
                Ok(())
            };
            let result = one_after_the_other(&copies, enqueue, || is_free.set(true));
            assert_eq!((result.is_err(), is_free.get()), (failing < 4, failing < 4));
            let expected = [(7, 0, 100), (8, 100, 0), (9, 100, 20), (10, 120, 1)];
            assert_eq!(*enqueued.borrow(), expected[..failing]);
        }
    }

    #[test]
    fn a_source_says_what_it_defines() {
        let source =
            "#define THREADS 256\n#define AT_ONCE 2\n#define WHOLE 1\n#line 1 \"prelude.h\"\n#define ABOVE 3\n";
        assert_eq!((defined(source, "AT_ONCE"), defined(source, "THREADS")), (Some(2), Some(256)));
        assert_eq!((defined(source, "AT"), defined(source, "ABOVE")), (None, None));
    }
}
