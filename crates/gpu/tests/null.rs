//! The shared layer on a driver that runs nothing: launches, memory, the program cache, and what can go wrong.

use isograd_core::ops::{Activation, Approximate, EmbeddingOptions, GemmBias, Transpose};
use isograd_core::tape::{BackwardOptions, fuse, grad_with};
use isograd_core::{Backend, Call, DType, Device, Kernel, Kind, Layout, Operand, Result, Rng, Tensor};
use isograd_gpu::driver::null::{Fault, NullDriver};
use isograd_gpu::source::assemble;
use isograd_gpu::{Dialect, Gpu, Names, Variant};
use std::path::Path;
use std::sync::Arc;

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

struct Setup {
    driver: Arc<NullDriver>,
    gpu: Arc<Gpu>,
    device: Device,
}

fn setup(memory: usize, cache: Option<&Path>) -> Setup {
    let driver = Arc::new(NullDriver::new(&DIALECT, memory));
    let gpu = Arc::new(Gpu::with_cache(driver.clone(), cache.map(Path::to_path_buf)));
    gpu.launches();
    Setup { driver, device: Device::from_backend("null:0", gpu.clone()), gpu }
}

fn zeros(device: &Device, shape: impl Into<isograd_core::Shape>) -> Result<Tensor> {
    Tensor::zeros(shape, DType::F32, device)
}

#[test]
fn launches_are_logged() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let x = zeros(&device, (4, 256))?;
    x.t()?.add(&x.t()?)?.to_bytes()?;
    let row = x.select(0, 0)?;
    x.add(&row)?.relu()?;
    let log: Vec<String> = gpu.launches().iter().map(ToString::to_string).collect();
    let expected = [
        "elementwise THREADS=256 ROW=fill RANK=1 VECTOR=4 STILL=0 T0=f32 elementwise 1x1x1x256 \
         (pointer, 00000000000000010000000000000400, 0000000000000400, 00000000)",
        "elementwise THREADS=256 ROW=add RANK=2 VECTOR=1 STILL=0 T0=f32 T1=f32 T2=f32 elementwise 4x1x1x256 \
         (pointer, pointer, pointer, 00000000000000010000000000000004000000000000010000000000000000010000000000000100\
         000000000000000100000000000000040000000000000100, 0000000000000400, 3f800000)",
        "elementwise THREADS=256 ROW=add RANK=2 VECTOR=4 STILL=0 T0=f32 T1=f32 T2=f32 elementwise 1x1x1x256 \
         (pointer, pointer, pointer, 00000000000000010000000000000100000000000000000100000000000000000000000000000001\
         000000000000010000000000000000400000000000000004, 0000000000000400, 3f800000)",
        "elementwise THREADS=256 ROW=relu RANK=1 VECTOR=4 STILL=0 T0=f32 T1=f32 elementwise 1x1x1x256 \
         (pointer, pointer, 000000000000000100000000000000010000000000000400, 0000000000000400)",
    ];
    assert_eq!(log, expected);
    Ok(())
}

#[test]
fn a_fused_function_is_one_launch_and_so_are_its_gradients() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let x = zeros(&device, (64, 1024))?.require_grad()?;
    let dy = zeros(&device, (64, 1024))?;
    gpu.launches();
    let y = fuse(|t| t[0].sigmoid()?.mul(&t[0])?.tanh()?.mul_scalar(0.5)?.exp(), &[&x])?;
    assert_eq!(gpu.launches().len(), 1);
    grad_with(&y, &[&x], &BackwardOptions { gradient: Some(dy), ..Default::default() })?;
    assert_eq!(gpu.launches().len(), 1);
    Ok(())
}

#[test]
fn a_dense_layer_is_one_launch_and_its_gradients_four() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let options =
        GemmBias { trans_b: Transpose::Yes, activation: Activation::Gelu(Approximate::Tanh), ..Default::default() };
    let x = zeros(&device, (600, 320))?;
    let [leaf, w, bias] =
        [x.require_grad()?, zeros(&device, (480, 320))?.require_grad()?, zeros(&device, 480)?.require_grad()?];
    let entries =
        || gpu.launches().iter().map(|l| l.program.split(' ').next().unwrap().to_string()).collect::<Vec<_>>();
    for (x, products) in [(&leaf, 2), (&x, 1)] {
        let dy = zeros(&device, (600, 480))?;
        entries();
        let y = x.gemm_bias(&w, Some(&bias), &options)?;
        assert_eq!(entries(), ["matrix/matmul.c"]);
        [&w, &bias].map(|t| t.set_grad(None)).into_iter().collect::<Result<Vec<_>>>()?;
        y.backward_with(&BackwardOptions { gradient: Some(dy), ..Default::default() })?;
        let mut expected = vec!["elementwise"];
        expected.extend(vec!["matrix/matmul.c"; products]);
        expected.push("reduction/reduce.c");
        assert_eq!(entries(), expected);
    }
    Ok(())
}

#[test]
fn a_gradient_passes_an_activation_in_the_kernel_that_makes_it() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    // The rows of the launches of a backward pass.
    let rows = |f: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>, options: BackwardOptions| -> Result<Vec<String>> {
        let (x, w) = (zeros(&device, (2, 300, 320))?.require_grad()?, zeros(&device, (320, 40))?);
        let y = f(&x, &w)?;
        gpu.launches();
        y.backward_with(&BackwardOptions { gradient: Some(zeros(&device, (2, 300, 40))?), ..options })?;
        let row = |program: &str| {
            let of = |name| program.split(' ').find_map(|define| define.strip_prefix(name)).map(str::to_string);
            of("JOIN=").or(of("ROW=")).unwrap_or_else(|| "product".into())
        };
        Ok(gpu.launches().iter().map(|launch| row(&launch.program)).filter(|row| row != "fill").collect())
    };
    let options = BackwardOptions::default;
    assert_eq!(rows(&|x, w| x.tanh()?.matmul(w), options())?, ["tanh_backward"]);
    assert_eq!(rows(&|x, w| x.silu()?.linear(&w.t()?, None), options())?, ["silu_backward"]);
    let dense =
        GemmBias { trans_b: Transpose::Yes, activation: Activation::Gelu(Approximate::None), ..Default::default() };
    let two = rows(&|x, w| x.linear(&w.t()?, None)?.tanh()?.gemm_bias(w, None, &dense)?.matmul(w), options())?;
    // The second is cut along K, and the row is applied to the sum of the parts.
    assert_eq!(two, ["gelu_backward", "product", "tanh_backward", "product"]);
    assert_eq!(rows(&|x, w| x.relu()?.linear(&w.t()?, None), options())?, ["relu_backward"]);
    // An attribute, a number beside the product, and a pass that is recorded.
    assert_eq!(rows(&|x, w| x.elu(2.0)?.matmul(w), options())?, ["product", "elu_backward"]);
    let negative = rows(&|x, w| x.tanh()?.neg()?.matmul(w), options())?;
    assert_eq!(negative, ["product", "neg", "tanh_backward"]);
    let recorded = rows(&|x, w| x.tanh()?.matmul(w), BackwardOptions { create_graph: true, ..options() })?;
    assert_eq!(recorded[0], "product");
    Ok(())
}

#[test]
fn memory_is_pooled_given_back_and_refused() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 20, None);
    let x = zeros(&device, 100_000)?;
    assert_eq!(device.memory().in_use, 400_000);
    drop(x);
    let stats = device.memory();
    assert_eq!((stats.in_use, stats.peak), (0, 400_000));
    assert!(stats.pooled >= 400_000);
    // Another size does not fit beside what is pooled, which is given back.
    let y = zeros(&device, 200_000)?;
    assert_eq!(device.memory().pooled, 0);
    let error = zeros(&device, 100_000).expect_err("the device is full");
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert!(error.to_string().contains("400000 bytes were asked for"), "{error}");
    assert!(error.to_string().contains("tensors hold 800000"), "{error}");
    let error = zeros(&device, 1 << 20).expect_err("the device is smaller");
    assert_eq!(error.kind(), Kind::OutOfMemory);
    drop(y);
    gpu.trim();
    zeros(&device, 200_000)?;
    Ok(())
}

#[test]
fn memory_of_another_device_is_refused() -> Result<()> {
    let [one, other] = [setup(1 << 20, None).gpu, setup(1 << 20, None).gpu];
    // Both devices know this address.
    let [memory, _same] = [one.allocate(64)?, other.allocate(64)?];
    let layout = Layout::contiguous(16.into());
    let operands = [Operand { memory: &*memory, layout: &layout, dtype: DType::F32 }];
    let fill = Call { op: "fill", kernel: Kernel::Fill, inputs: &[], outputs: &operands, ints: &[], floats: &[1.0] };
    one.run(&fill)?;
    for result in [other.upload(&*memory, &[0; 4]), other.download(&*memory, 0, &mut [0; 4]), other.run(&fill)] {
        let error = result.expect_err("the memory is another device's").to_string();
        assert!(error.contains("the memory belongs to another device"), "{error}");
    }
    Ok(())
}

#[test]
fn a_failing_compiler_is_an_error_of_the_call() -> Result<()> {
    let Setup { driver, device, .. } = setup(1 << 20, None);
    let x = zeros(&device, 4)?;
    driver.set_fault(Fault::Compiler);
    let error = x.exp().expect_err("nothing compiles");
    assert_eq!(error.kind(), Kind::Backend);
    assert!(error.to_string().contains("ROW=exp") && error.to_string().contains("line 1: error"), "{error}");
    driver.set_fault(Fault::None);
    x.exp()?;
    Ok(())
}

#[test]
fn f64_is_unsupported_where_the_device_lacks_it() -> Result<()> {
    let gpu = Arc::new(Gpu::with_cache(Arc::new(NullDriver::new(&DIALECT, 1 << 20).without_f64()), None));
    let device = Device::from_backend("null:0", gpu.clone());
    let x = Tensor::from_vec(vec![1f64; 4], (2, 2), &device)?;
    // Bits are moved all the same.
    x.t()?.copy()?;
    for result in [x.exp(), x.matmul(&x), x.sum(..), x.softmax(0), Tensor::zeros(3, DType::F64, &device)] {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Unsupported, "the device has no f64"));
    }
    Ok(())
}

#[test]
fn time_is_the_time_of_what_was_enqueued() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 20, None);
    let x = zeros(&device, 4)?;
    gpu.launches();
    // This device's clock stands still.
    assert_eq!(device.time(|| x.exp().map(drop))?, 0.0);
    assert_eq!(gpu.launches().len(), 1);
    assert_eq!(device.time(|| x.reshape(5).map(drop)).unwrap_err().kind(), Kind::Shape);
    Ok(())
}

#[test]
fn a_lost_device_is_an_error_and_its_tensors_drop() -> Result<()> {
    let Setup { driver, device, .. } = setup(1 << 20, None);
    let x = zeros(&device, 4)?;
    x.exp()?;
    driver.set_fault(Fault::Lost);
    assert!(x.exp().expect_err("the device is gone").to_string().contains("the device is lost"));
    assert!(x.to_bytes().expect_err("the device is gone").to_string().contains("the device is lost"));
    assert!(device.synchronize().is_err());
    assert_eq!(x.to_string(), "f32 [4] on null:0 (not readable: the device is lost)");
    assert_eq!(format!("{x:?}"), "f32 [4] on null:0");
    drop(x);
    driver.set_fault(Fault::None);
    zeros(&device, 4)?.exp()?;
    Ok(())
}

#[test]
fn compiled_programs_are_kept_on_disk_and_damage_is_noticed() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let step = |expected: usize| -> Result<()> {
        let Setup { driver, device, .. } = setup(1 << 20, Some(folder.path()));
        zeros(&device, 4)?.exp()?;
        assert_eq!(driver.compiled(), expected);
        Ok(())
    };
    step(2)?;
    step(0)?;
    let files = || {
        let paths = std::fs::read_dir(folder.path()).expect("the cache").map(|f| f.expect("a file").path());
        paths.filter(|path| path.is_file())
    };
    assert_eq!(files().count(), 2);
    for (cut, path) in files().enumerate() {
        let bytes = std::fs::read(&path).expect("a program");
        let damaged =
            if cut == 0 { bytes[..bytes.len() / 2].to_vec() } else { [&bytes[..60], b"x", &bytes[61..]].concat() };
        std::fs::write(&path, damaged).expect("a program");
    }
    step(2)?;
    step(0)?;
    // Of several at once, one compiles, and the others wait for it.
    files().for_each(|path| std::fs::remove_file(path).expect("a program"));
    let compiled: usize = std::thread::scope(|scope| {
        let each = || -> Result<usize> {
            let Setup { driver, device, .. } = setup(1 << 20, Some(folder.path()));
            zeros(&device, 4)?.exp()?;
            Ok(driver.compiled())
        };
        let all: Vec<_> = (0..4).map(|_| scope.spawn(each)).collect();
        all.into_iter().map(|t| t.join().expect("no panic")).sum::<Result<usize>>()
    })?;
    assert_eq!(compiled, 2);
    step(0)?;
    // A folder that cannot be written costs compiling, nothing else.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let Setup { driver, device, .. } = setup(1 << 20, Some(&file.join("below")));
    zeros(&device, 4)?.exp()?;
    assert_eq!(driver.compiled(), 2);
    Ok(())
}

#[test]
fn a_thousand_steps_hold_no_more_than_ten() -> Result<()> {
    let Setup { gpu, device, .. } = setup(64 << 20, None);
    let step = || -> Result<()> {
        let x = zeros(&device, (64, 64))?.require_grad()?;
        x.exp()?.mul(&x)?.tanh()?;
        Ok(())
    };
    (0..10).try_for_each(|_| step())?;
    let held = device.memory();
    (0..990).try_for_each(|_| step())?;
    assert_eq!(device.memory(), held);
    assert!(gpu.driver().limits().memory > held.pooled);
    Ok(())
}

/// The entries of the kernels that `f` launches.
fn entries(gpu: &Gpu, f: impl FnOnce() -> Result<()>) -> Result<Vec<&'static str>> {
    gpu.launches();
    f()?;
    Ok(gpu.launches().iter().map(|launch| launch.entry).collect())
}

#[test]
fn losses_and_their_gradients_take_few_launches() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let (logits, target) = (zeros(&device, (64, 1000))?.require_grad()?, Tensor::zeros(64, DType::I64, &device)?);
    let entropy = entries(&gpu, || logits.cross_entropy(&target)?.backward())?;
    let expected = ["cross_entropy_rows", "cross_entropy_total", "elementwise", "cross_entropy_rows_backward"];
    assert_eq!(entropy, expected);
    let x = zeros(&device, (64, 1000))?.require_grad()?;
    let dropout = entries(&gpu, || x.dropout(0.1, &Rng::new(1))?.sum(..)?.backward())?;
    assert_eq!(dropout.iter().filter(|&&entry| entry == "dropout").count(), 2);
    let (table, tokens) = (zeros(&device, (500, 64))?.require_grad()?, Tensor::zeros(1024, DType::I64, &device)?);
    let options = EmbeddingOptions { padding_idx: Some(0), scale_grad_by_freq: true };
    let dy = zeros(&device, (1024, 64))?;
    let embedding = entries(&gpu, || {
        let y = table.embedding(&tokens, &options)?;
        y.backward_with(&BackwardOptions { gradient: Some(dy), ..Default::default() })
    })?;
    assert_eq!(embedding, ["gather", "lists"]);
    Ok(())
}

#[test]
fn the_gradient_of_a_product_is_one_launch() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    for (n, expected) in [(1, "prod_backward"), (8192, "prod_backward"), (8193, "scan")] {
        let x = zeros(&device, (64, n))?.require_grad()?;
        let y = x.prod(-1)?;
        let options = BackwardOptions { gradient: Some(zeros(&device, 64)?), ..Default::default() };
        let found = entries(&gpu, || y.backward_with(&options))?;
        assert!(if n > 8192 { found.contains(&expected) } else { found == [expected] }, "{n}: {found:?}");
    }
    Ok(())
}

#[test]
fn running_sums_of_columns_are_not_copied() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    // Few columns are cut into parts, whose totals are scanned first.
    for (dims, launches) in [((256, 65536), 1), ((4096, 256), 3)] {
        let x = zeros(&device, dims)?.require_grad()?;
        assert_eq!(entries(&gpu, || x.cumsum(0).map(drop))?, vec!["scan_columns"; launches]);
        let y = x.cumsum(0)?;
        assert!(y.is_contiguous());
        let options = BackwardOptions { gradient: Some(y.zeros_like()?), ..Default::default() };
        assert_eq!(entries(&gpu, || y.backward_with(&options))?, vec!["scan_columns"; launches]);
        assert!(x.t()?.cumsum(1)?.t()?.is_contiguous());
    }
    Ok(())
}

#[test]
fn indexing_takes_few_launches() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 40, None);
    let index = |dims: &[usize]| Tensor::zeros(dims, DType::I64, &device);
    for (rows, n) in [(1024, 128), (16384, 2048)] {
        let (x, by_row, by_element) = (zeros(&device, (rows, 256))?.require_grad()?, index(&[n])?, index(&[n, 256])?);
        let dy = zeros(&device, (n, 256))?;
        for (read, adds) in [(x.gather(0, &by_element)?, "lists"), (x.index_select(0, &by_row)?, "teams")] {
            let options = BackwardOptions { gradient: Some(dy.clone()), ..Default::default() };
            // Zeros, and what is added to them; the second gradient adds to the first.
            let backward = entries(&gpu, || read.backward_with(&options))?;
            assert_eq!(backward[..2], ["elementwise", adds]);
        }
        let x = x.detach();
        assert_eq!(entries(&gpu, || x.gather(0, &by_element).map(drop))?, ["gather"]);
        assert_eq!(entries(&gpu, || x.gather(1, &by_element).map(drop))?, ["gather"]);
        assert_eq!(entries(&gpu, || x.index_select(0, &by_row).map(drop))?, ["gather"]);
        // A copy, and what is added to it.
        assert_eq!(entries(&gpu, || x.scatter_add(0, &by_element, &dy).map(drop))?, ["elementwise", "lists"]);
        assert_eq!(entries(&gpu, || x.index_add(0, &by_row, &dy, 1).map(drop))?, ["elementwise", "teams"]);
    }
    let (table, tokens) = (zeros(&device, (50257, 1024))?.require_grad()?, index(&[65536])?);
    let y = table.embedding(&tokens, &EmbeddingOptions::default())?;
    let options = BackwardOptions { gradient: Some(y.zeros_like()?), ..Default::default() };
    let backward = entries(&gpu, || y.backward_with(&options))?;
    // Two digits of eight bits.
    assert_eq!(backward, ["keys", "digits", "move", "digits", "move", "sums", "joins"]);
    Ok(())
}

#[test]
fn a_recording_keeps_its_memory_until_it_is_dropped() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let kept = zeros(&device, 1000)?;
    let mut step = device.capture(|x: Tensor| {
        // In the first pass this is made, used and gone; a large one must not take the place of one that is read again.
        let large = zeros(x.device(), 1 << 20)?;
        let y = x.add(&kept)?.add(&large.narrow(0, 0, 1000)?)?;
        drop(large);
        y.add(&zeros(x.device(), 1 << 20)?.narrow(0, 5, 1000)?)
    });
    let x = zeros(&device, 1000)?;
    for _ in 0..3 {
        step.run(x.clone())?;
    }
    assert!(step.is_recorded());
    let held = device.memory().captured;
    assert!((1 << 22..2 << 22).contains(&held), "{held}");
    gpu.trim();
    // The driver checks that what it replays is still allocated.
    gpu.launches();
    step.run(x.clone())?;
    assert_eq!(gpu.launches().len(), 1, "the copy of the input");
    // A result that the caller still has is copied before the next run; that is no launch.
    let first = step.run(x.clone())?;
    gpu.launches();
    let second = step.run(x.clone())?;
    assert_eq!(gpu.launches().len(), 1);
    assert_eq!(first.shape(), second.shape());
    drop((first, second));
    drop(step);
    assert_eq!(device.memory().captured, 0);
    drop(kept);
    gpu.trim();
    assert_eq!(device.memory().pooled, 0);
    Ok(())
}

#[test]
fn other_threads_are_not_recorded() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let (entered, leave) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    let runs = std::cell::Cell::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let other = scope.spawn(|| -> Result<()> {
            entered.wait();
            zeros(&device, 10)?.exp()?;
            assert!(leave.load(std::sync::atomic::Ordering::SeqCst), "it did not wait");
            Ok(())
        });
        let mut step = device.capture(|x: Tensor| {
            runs.set(runs.get() + 1);
            let y = x.neg()?;
            if runs.get() == 2 {
                entered.wait();
                std::thread::sleep(std::time::Duration::from_millis(50));
                leave.store(true, std::sync::atomic::Ordering::SeqCst);
            }
            Ok(y)
        });
        let x = zeros(&device, 10)?;
        (0..2).try_for_each(|_| step.run(x.clone()).map(drop))?;
        other.join().expect("it did not panic")?;
        gpu.launches();
        step.run(x)?;
        // The copy of the input.
        assert_eq!(gpu.launches().len(), 1);
        Ok(())
    })
}

/// A normalised row and a product, from plain ops.
fn rows_and_a_product(x: &Tensor) -> Result<Tensor> {
    let centred = x.sub(&x.mean_keepdim(1)?)?;
    centred.exp()?.matmul(&x.t()?)?.gelu(Approximate::Tanh)
}

#[test]
fn a_first_run_compiles_what_the_recording_launches_and_no_more() -> Result<()> {
    let Setup { driver, device, .. } = setup(1 << 30, None);
    let x = zeros(&device, (64, 96))?;
    let before = driver.compiled();
    let mut step = device.capture(|x: Tensor| rows_and_a_product(&x));
    step.run(x.clone())?;
    let first = driver.compiled() - before;
    (0..2).try_for_each(|_| step.run(x.clone()).map(drop))?;
    assert!(step.is_recorded());
    // The copy of the input alone.
    assert_eq!(driver.compiled() - before, first + 1);
    // The row, the product and its activation.
    assert_eq!(first, 3);
    Ok(())
}

#[test]
fn what_a_first_run_puts_off_is_launched_before_a_wait_and_after_an_error() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let x = zeros(&device, 10)?;
    gpu.launches();
    let count = || gpu.launches().len();
    let mut step = device.capture(|x: Tensor| {
        let y = x.exp()?;
        assert_eq!(count(), 0);
        gpu.mark()?;
        assert_eq!(count(), 1);
        let y = y.neg()?;
        assert_eq!(count(), 1, "later calls run as they come");
        Ok(y)
    });
    step.run(x.clone())?;
    let mut step = device.capture(|x: Tensor| {
        x.fill_(1.0)?;
        x.reshape(11)
    });
    assert!(step.run(x.clone()).is_err());
    assert_eq!(count(), 1);
    let mut step = device.capture(|x: Tensor| -> Result<Tensor> {
        x.fill_(1.0)?;
        panic!("on purpose")
    });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.run(x.clone()))).is_err());
    assert_eq!(count(), 1);
    // Outside of a first run, calls run as they come.
    x.exp()?;
    assert_eq!(count(), 1);
    Ok(())
}

#[test]
fn a_panic_while_recording_leaves_the_queue_running() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let runs = std::cell::Cell::new(0);
    let mut step = device.capture(|x: Tensor| {
        runs.set(runs.get() + 1);
        assert!(runs.get() != 2, "on purpose");
        x.neg()
    });
    let x = zeros(&device, 10)?;
    step.run(x.clone())?;
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.run(x.clone()))).is_err());
    device.synchronize()?;
    assert_eq!(device.memory().captured, 0);
    for _ in 0..3 {
        step.run(x.clone())?;
    }
    assert!(step.is_recorded());
    Ok(())
}

/// A kernel computes with its definitions in `int`, where 2^31 is negative and 2^32 is 0.
#[test]
fn a_definition_that_does_not_fit_32_bits_is_refused_before_it_is_compiled() {
    for (value, fits) in [(i32::MAX as i64, true), (i32::MIN as i64, true), (1 << 31, false), (1 << 40, false)] {
        let found =
            assemble(&DIALECT, &Variant::new("reduction/reduce.c").define("STRIDE", value), &Names::default(), None);
        assert_eq!(found.is_ok(), fits, "{value}");
    }
}

/// Calls on two states, each of which needs a value of its own before the gradient joins both.
#[test]
fn an_optimizer_by_hand_is_one_kernel() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let [p, m] = [zeros(&device, 1 << 20)?, zeros(&device, 1 << 20)?];
    let g = zeros(&device, 1 << 20)?;
    let text = explained(&device, &g, |g| {
        let u = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?.sign()?;
        p.copy_(&p.mul_scalar(0.99)?.sub(&u.mul_scalar(1e-3)?)?)?;
        m.copy_(&m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?)?;
        Ok(p.clone())
    })?;
    assert!(text.contains("12 are 1 kernels") && text.contains(" 0 of temporary tensors"), "{text}");
    Ok(())
}

/// A step, run until it is recorded, and its program in words.
fn explained(device: &Device, x: &Tensor, f: impl FnMut(Tensor) -> Result<Tensor>) -> Result<String> {
    let mut step = device.capture(f);
    (0..2).try_for_each(|_| step.run(x.clone()).map(drop))?;
    Ok(step.explain().unwrap_or_default())
}

/// The lines of the calls of an explanation, with the parts of kernels behind them.
fn calls(text: &str) -> Vec<String> {
    let mut calls: Vec<String> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("        "), line.split_once("  ")) {
            (Some(part), _) => calls.last_mut().unwrap().push_str(&format!(" {part}")),
            (None, Some((number, call))) if number.trim().parse::<usize>().is_ok() || line.starts_with(' ') => {
                let call = call.trim().trim_start_matches(|c: char| c.is_ascii_digit()).trim();
                calls.push(call.split([' ', ':']).next().unwrap().to_string());
            }
            _ => (),
        }
    }
    calls
}

#[test]
fn elementwise_calls_of_a_step_are_one_kernel() -> Result<()> {
    let Setup { gpu, device, .. } = setup(1 << 30, None);
    let (x, w) = (zeros(&device, (1000, 512))?, zeros(&device, 512)?);
    let chain = |x: Tensor| x.mul(&w)?.sigmoid()?.add_scalar(1)?.tanh()?.cast(DType::BF16)?.square();
    let text = explained(&device, &x, chain)?;
    assert_eq!(calls(&text), ["mul mul sigmoid add_scalar tanh cast square"], "{text}");
    // The row of w, x and the result; the others stay in registers.
    assert!(
        text.contains("6 calls: 0 that nobody reads are left out, 6 are 1 kernels, which saves 18432000 bytes"),
        "{text}"
    );
    // Reductions of rows are calls of the kernel.
    let text = explained(&device, &x, |x| {
        let c = x.sub(&x.keepdim(-1isize, |t, axes| t.mean(axes))?)?;
        c.exp()?.div(&c.square()?.keepdim(-1isize, |t, axes| t.sum(axes))?)
    })?;
    assert_eq!(calls(&text), ["mean mean sub exp square sum div"], "{text}");
    // Columns are summed by another kernel, which computes what it adds up; so does that of the gradient beside it.
    let text = explained(&device, &x, |x| {
        let (x, w) = (x.require_grad()?, w.detach().require_grad()?);
        let y = x.exp()?.mul(&w)?.tanh()?;
        let mut found = grad_with(&y.sum(..)?, &[&x, &w], &BackwardOptions::default())?;
        found.remove(0).add(&found[0])
    })?;
    let backward = calls(&text).iter().filter(|call| call.contains("mul_backward")).count();
    assert_eq!((backward, text.contains("Fused(pointwise_sum")), (2, false), "{text}");
    gpu.set_fuse(false);
    let text = explained(&device, &x, chain)?;
    assert_eq!(calls(&text).len(), 6, "{text}");
    Ok(())
}

#[test]
fn results_that_nobody_reads_are_not_computed() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let (x, index) = (zeros(&device, (100, 64))?, Tensor::zeros(100, DType::I64, &device)?);
    let text = explained(&device, &x, |x| {
        x.exp()?.matmul(&x.t()?)?;
        // It may report a bad index.
        x.index_select(0, &index)?;
        x.neg()
    })?;
    assert_eq!(calls(&text), ["index_select", "neg"], "{text}");
    Ok(())
}

#[test]
fn what_a_group_reads_in_another_order_it_does_not_write() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let x = zeros(&device, (1000, 1000))?;
    // Each element of the second call is one of another thread's first.
    let text = explained(&device, &x, |x| x.exp()?.t()?.neg()?.contiguous())?;
    assert_eq!(calls(&text).first().map(String::as_str), Some("exp"), "{text}");
    // In place: the state is read, changed and read again.
    let state = zeros(&device, (1000, 1000))?;
    let text = explained(&device, &x, |x| {
        let before = state.mul_scalar(2)?;
        state.add_(&x)?;
        before.sub(&state)
    })?;
    assert_eq!(calls(&text), ["mul_scalar mul_scalar add_ sub"], "{text}");
    Ok(())
}

#[test]
fn temporary_tensors_of_a_step_share_memory() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let x = zeros(&device, (1024, 1024))?;
    // Products, which are not fused: two tensors live at a time.
    let mut step = device.capture(|x: Tensor| {
        let mut y = x.clone();
        for _ in 0..8 {
            y = y.matmul(&x)?;
        }
        Ok(y)
    });
    (0..3).try_for_each(|_| step.run(x.clone()).map(drop))?;
    let captured = device.memory().captured;
    assert!((8 << 20..9 << 20).contains(&captured), "{captured}");
    let kept = step.run(x.clone())?;
    drop(step);
    assert_eq!(device.memory().captured, 0);
    drop(kept);
    Ok(())
}

#[test]
fn values_are_computed_again_instead_of_stored() -> Result<()> {
    let Setup { device, .. } = setup(1 << 30, None);
    let (x, w) = (zeros(&device, (1000, 512))?, zeros(&device, (512, 512))?);
    // The second kernel reads x and the product anyway. It computes the sigmoid again, which nobody stores.
    let text = explained(&device, &x, |x| {
        let s = x.sigmoid()?;
        s.exp()?.matmul(&w)?.mul(&s)?.add(&x)
    })?;
    assert_eq!(calls(&text), ["sigmoid sigmoid exp", "matmul", "mul sigmoid again mul add"], "{text}");
    assert!(text.contains("1 values are computed again where they are read"), "{text}");
    let operands = |line: &str| line.matches("f32[1000, 512]").count();
    assert!(text.lines().filter(|line| line.contains("one kernel")).all(|line| operands(line) <= 3), "{text}");
    // A value is not computed again from a tensor that was changed in between.
    let state = x.copy()?;
    let text = explained(&device, &x, |x| {
        let s = state.sigmoid()?;
        let y = s.exp()?.matmul(&w)?;
        state.fill_(1)?;
        y.mul(&s)?.add(&x)
    })?;
    assert!(!text.contains("computed again"), "{text}");
    Ok(())
}
