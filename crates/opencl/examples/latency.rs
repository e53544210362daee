//! What a launch and a small read cost: `latency [ordinal]` prints microseconds, the median of many, for each way in which
//! they can be asked for.

// OpenCL is C: handles, host pointers, and arguments without types.
#![allow(unsafe_code)]

use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, CommandQueue};
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device};
use opencl3::event::Event;
use opencl3::kernel::Kernel;
use opencl3::memory::{Buffer, CL_MAP_READ, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, svm_alloc};
use opencl3::platform::get_platforms;
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RUNS: usize = 101;
/// Launches that follow one another.
const TRAIN: usize = 500;
const SOURCE: &str = "__kernel void touch(__global int *p) { if (get_global_id(0) == 0) p[0] += 1; }";

/// Asks for an event of each launch, or for none.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Event,
    Nothing,
}

fn launch(queue: &CommandQueue, kernel: &Kernel, ask: Ask) -> Result<()> {
    let mut event = null_mut();
    let wanted = if let Ask::Event = ask { &raw mut event } else { null_mut() };
    let (global, local) = ([256usize], [256usize]);
    let library = cl3::load_library().as_ref().map_err(|e| format!("{e:?}"))?;
    let (queue, kernel) = (queue.get(), kernel.get());
    let code =
        library.clEnqueueNDRangeKernel(queue, kernel, 1, null(), global.as_ptr(), local.as_ptr(), 0, null(), wanted);
    if let Ask::Event = ask {
        drop(Event::new(event));
    }
    if code == Some(0) { Ok(()) } else { Err(format!("clEnqueueNDRangeKernel: {code:?}").into()) }
}

/// The median of what `f` measures, in microseconds.
fn median(mut f: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut all = (0..RUNS).map(|_| f()).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[RUNS / 2] * 1e6)
}

/// Seconds of the host's clock.
fn wall(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds of the device's clock between two marks.
fn between(queue: &CommandQueue, f: impl FnOnce() -> Result<()>) -> Result<f64> {
    // SAFETY: there is nothing to wait for.
    let mark = || unsafe { queue.enqueue_marker_with_wait_list(&[]) };
    let from = mark()?;
    f()?;
    let to = mark()?;
    to.wait()?;
    Ok((to.profiling_command_end()? - from.profiling_command_end()?) as f64 * 1e-9)
}

fn main() -> Result<()> {
    let ordinal: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(0);
    let of = |p: &opencl3::platform::Platform| p.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default();
    let devices: Vec<Device> = get_platforms()?.iter().flat_map(of).map(Device::new).collect();
    let device = devices.get(ordinal).ok_or("there is no such device")?;
    println!("{}, driver {}", device.name()?, device.driver_version()?);
    let context = Context::from_device(device)?;
    let program = Program::create_and_build_from_source(&context, SOURCE, "")?;
    let kernel = Kernel::create(&program, "touch")?;
    // SAFETY: the memory stays until the process ends, and is all that the kernel uses.
    let memory = unsafe { svm_alloc(context.get(), CL_MEM_READ_WRITE, 4096, 0) }.map_err(|e| format!("{e}"))?;
    // SAFETY: as above.
    unsafe { opencl3::kernel::set_kernel_arg_svm_pointer(kernel.get(), 0, memory) }.map_err(|e| format!("{e}"))?;
    let queue = |properties| CommandQueue::create_default_with_properties(&context, properties, 0);
    let (timed, plain) = (queue(CL_QUEUE_PROFILING_ENABLE)?, queue(0)?);

    for ask in [Ask::Event, Ask::Nothing] {
        let train = |queue: &CommandQueue| (0..TRAIN).try_for_each(|_| launch(queue, &kernel, ask));
        let one = median(|| between(&timed, || launch(&timed, &kernel, ask)))?;
        let many = median(|| between(&timed, || train(&timed)))? / TRAIN as f64;
        println!("{ask:?}: one launch between two marks {one:.2}, each of {TRAIN} {many:.2}");
        for (name, queue) in [("with", &timed), ("without", &plain)] {
            let enqueued =
                median(|| wall(|| train(queue)).and_then(|t| queue.finish().map(|()| t).map_err(Into::into)))?;
            let done = median(|| wall(|| train(queue).and_then(|()| queue.finish().map_err(Into::into))))?;
            let [enqueued, done] = [enqueued, done].map(|t| t / TRAIN as f64);
            println!(
                "{ask:?}: on a queue {name} profiling, the host's time of each {enqueued:.2}, until it is done {done:.2}"
            );
        }
    }

    let mut own = [0u8; 4096];
    let mut mapped = null_mut();
    // SAFETY: the buffers have the bytes that are mapped, and stay until the process ends.
    let (landing, over) = unsafe {
        let landing = Buffer::<u8>::create(&context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, 4096, null_mut())?;
        timed.enqueue_map_buffer(&landing, CL_BLOCKING, CL_MAP_READ, 0, 4096, &mut mapped, &[])?;
        (landing, Buffer::<u8>::create(&context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, 4096, memory)?)
    };
    let places = [("own memory", own.as_mut_ptr().cast::<c_void>()), ("mapped memory", mapped)];
    for bytes in [8, 4096] {
        let read = |name: &str, how: &dyn Fn() -> Result<()>| -> Result<()> {
            let alone = median(|| wall(how))?;
            let behind = median(|| wall(|| launch(&timed, &kernel, Ask::Nothing).and_then(|()| how())))?;
            println!("{bytes} bytes {name}: {alone:.2}, behind a launch {behind:.2}");
            Ok(())
        };
        for (name, place) in places {
            // SAFETY: both places have so many bytes.
            let copy = |blocking| unsafe {
                opencl3::command_queue::enqueue_svm_mem_cpy(timed.get(), blocking, place, memory, bytes, 0, null())
            };
            read(&format!("by a waiting copy to {name}"), &|| {
                drop(Event::new(copy(CL_BLOCKING).map_err(|e| format!("{e}"))?));
                Ok(())
            })?;
            read(&format!("by a copy to {name} and its event"), &|| {
                Ok(Event::new(copy(CL_NON_BLOCKING).map_err(|e| format!("{e}"))?).wait()?)
            })?;
        }
        for (name, place) in places {
            // SAFETY: both places have so many bytes.
            let part = unsafe { std::slice::from_raw_parts_mut(place.cast::<u8>(), bytes) };
            let part = std::cell::RefCell::new(part);
            read(&format!("by a read of a buffer over it to {name}"), &|| {
                // SAFETY: as above.
                Ok(unsafe { timed.enqueue_read_buffer(&over, CL_BLOCKING, 0, &mut part.borrow_mut(), &[]) }
                    .map(drop)?)
            })?;
        }
        read("by mapping", &|| {
            // SAFETY: the memory has so many bytes, and is unmapped before anyone uses it.
            unsafe {
                opencl3::command_queue::enqueue_svm_map(
                    timed.get(),
                    CL_BLOCKING,
                    CL_MAP_READ,
                    memory,
                    bytes,
                    0,
                    null(),
                )
                .map(Event::new)
                .map_err(|e| format!("{e}"))?;
                opencl3::command_queue::enqueue_svm_unmap(timed.get(), memory, 0, null())
                    .map(Event::new)
                    .map_err(|e| format!("{e}"))?;
            }
            Ok(())
        })?;
    }
    drop(landing);
    Ok(())
}
