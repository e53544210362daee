//! Attributes and sizes that do not fit anywhere, and memory that is not there: an error on every device, no panic, no abort
//! and no endless loop.

use isograd::custom::{CustomOp, Gradient, Launch, Source};
use isograd::ops::loss::{Reduction, Triplet};
use isograd::ops::{AvgPool, INFER, MaxPool, Order, Statistics, TieGrad};
use isograd::{DType, Device, Kind, Result, Scalar, Tensor};
use isograd_tests::harness::{self, Check, Outcome, equal, refused, trial};
use libtest_mimic::Trial;
use std::process::Command;

/// Set for the process that runs with little memory.
pub const LITTLE_MEMORY: &str = "ISOGRAD_TEST_LITTLE_MEMORY";

pub fn trials(device: &Device) -> Vec<Trial> {
    let checks: [(&str, &str, Check); 9] = [
        ("pool", "windows_that_kernels_cannot_count_are_refused", uncountable_windows),
        ("pool", "a_window_as_far_apart_as_can_be", sparse_windows),
        ("pool", "windows_of_an_empty_batch_take_no_time", empty_batch),
        ("split", "more_pieces_than_a_list_holds_are_refused", too_many_pieces),
        ("concat", "extents_that_add_up_beyond_a_word_are_refused", overflowing_sum),
        ("matmul", "batches_that_multiply_beyond_a_word_are_refused", overflowing_batches),
        ("norm", "an_eps_that_is_no_number_is_refused", eps),
        ("attributes", "what_is_no_number_is_refused", not_numbers),
        ("attributes", "integers_that_the_dtype_does_not_hold_are_refused", integers),
    ];
    let checks = checks.map(|(op, aspect, check)| harness::check(device, op, aspect, check));
    checks.into_iter().chain(little_memory(device)).collect()
}

/// Numbers of more than 31 bits: the low 32 bits of some are 0, of others 1 or a sign.
const HUGE: [usize; 6] = [1 << 31, 1 << 32, (1 << 32) + 1, 1 << 40, i64::MAX as usize, usize::MAX];

fn uncountable_windows(device: &Device) -> Result<Outcome> {
    let x = |dims: &[usize]| Tensor::ones(dims, DType::F32, device);
    let (line, plane, volume) = (x(&[1, 2, 5])?, x(&[1, 2, 5, 5])?, x(&[1, 2, 5, 5, 5])?);
    let mut outcome = Ok(());
    let mut check = |what: &str, result: Result<Tensor>| {
        let found = refused(what, result, Kind::Attr, "");
        outcome = outcome.clone().and(found);
    };
    for huge in HUGE {
        let base = MaxPool::new([2]);
        for (name, pool) in [
            ("kernel", &MaxPool { kernel: [huge], ..base }),
            ("stride", &MaxPool { stride: [huge], ..base }),
            ("padding", &MaxPool { padding: [huge], ..base }),
            ("dilation", &MaxPool { dilation: [huge], ..base }),
            ("kernel and padding", &MaxPool { kernel: [huge], padding: [huge / 2], ..base }),
            ("dilation and padding", &MaxPool { dilation: [huge], padding: [huge / 2], ..base }),
        ] {
            check(&format!("a maximum, {name} of {huge}"), line.max_pool1d(pool));
            check(&format!("positions, {name} of {huge}"), line.max_pool1d_with_indices(pool).map(|(y, _)| y));
        }
        let base = AvgPool::new([2, 2]);
        for (name, pool) in [
            ("kernel", &AvgPool { kernel: [huge, 2], ..base }),
            ("stride", &AvgPool { stride: [2, huge], ..base }),
            ("padding", &AvgPool { padding: [huge, 0], ..base }),
            ("divisor", &AvgPool { stride: [huge, huge], divisor_override: Some(3), ..base }),
        ] {
            check(&format!("an average, {name} of {huge}"), plane.avg_pool2d(pool));
        }
        let stride = [1, huge, 1];
        check(&format!("a stride of {huge}"), volume.max_pool3d(&MaxPool { stride, ..MaxPool::new([2; 3]) }));
        check(&format!("a stride of {huge}"), volume.avg_pool3d(&AvgPool { stride, ..AvgPool::new([2; 3]) }));
    }
    // Extents that fit, and a window of 2^34 elements.
    let (kernel, padding) = ([1 << 17; 2], [1 << 16; 2]);
    check("a large window", plane.max_pool2d(&MaxPool { padding, ..MaxPool::new(kernel) }));
    check("a large window", plane.avg_pool2d(&AvgPool { padding, ..AvgPool::new(kernel) }));
    // 3 elements that span 2^31.
    let dilation = [1 << 30];
    check("elements far apart", line.max_pool1d(&MaxPool { dilation, ..MaxPool::new([3]) }));
    Ok(outcome)
}

/// What fits into 31 bits is computed, on every device alike.
fn sparse_windows(device: &Device) -> Result<Outcome> {
    let x = Tensor::from_vec((0..10).map(|v| v as f32).collect(), (1, 2, 5), device)?.require_grad()?;
    let most = i32::MAX as usize;
    let far = MaxPool { stride: [most], ..MaxPool::new([2]) };
    let (y, at) = x.max_pool1d_with_indices(&far)?;
    y.sum(..)?.backward()?;
    let gradient = x.grad().map_or(Ok(Vec::new()), |g| g.to_f64_vec())?;
    let average = x.avg_pool1d(&AvgPool { stride: [most], ..AvgPool::new([2]) })?;
    let plain = x.detach().max_pool1d(&far)?.to_f64_vec()?;
    Ok(equal("maxima", y.to_f64_vec()?, vec![1.0, 6.0])
        .and(equal("without positions", plain, vec![1.0, 6.0]))
        .and(equal("positions", at.to_f64_vec()?, vec![1.0, 1.0]))
        .and(equal("gradient", gradient, vec![0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]))
        .and(equal("averages", average.to_f64_vec()?, vec![0.5, 5.5]))
        .and(refused(
            "elements 2^31 - 2 apart",
            x.max_pool1d(&MaxPool { dilation: [most - 1], ..MaxPool::new([2]) }),
            Kind::Shape,
            "no window",
        )))
}

fn empty_batch(device: &Device) -> Result<Outcome> {
    let x = Tensor::zeros((0, 1, 1 << 40), DType::F32, device)?;
    let pool = MaxPool { stride: [1], padding: [1], dilation: [2], ..MaxPool::new([2]) };
    let y = x.max_pool1d(&pool)?;
    let average = x.avg_pool1d(&AvgPool { stride: [1], ..AvgPool::new([2]) })?;
    // Elements at -5 and 5, -4 and 6, -3 and 7.
    let short = Tensor::zeros((1, 1, 3), DType::F32, device)?;
    let hollow = MaxPool { stride: [1], padding: [5], dilation: [10], ..MaxPool::new([2]) };
    Ok(equal("windows", y.dims().to_vec(), vec![0, 1, 1 << 40])
        .and(equal("averages", average.dims().to_vec(), vec![0, 1, (1 << 40) - 1]))
        .and(refused("a hollow window", short.max_pool1d(&hollow), Kind::Shape, "no element")))
}

fn too_many_pieces(device: &Device) -> Result<Outcome> {
    let x = Tensor::zeros((0, 1 << 40), DType::F32, device)?;
    let expanded = Tensor::zeros(1, DType::F32, device)?.broadcast_to(1 << 40)?;
    let halves: Vec<usize> = x.split(1 << 39, 1)?.iter().map(|piece| piece.dims()[1]).collect();
    Ok(refused("of nothing", x.split(1, 1), Kind::Attr, "pieces")
        .and(refused("of a view", expanded.split(1 << 17, 0), Kind::Attr, "pieces"))
        .and(refused("of size 0", expanded.split(0, 0), Kind::Attr, ""))
        .and(equal("halves", halves, vec![1 << 39; 2])))
}

fn overflowing_sum(device: &Device) -> Result<Outcome> {
    let part = Tensor::zeros((0, 1 << 58), DType::F32, device)?;
    Ok(refused("64 parts of 2^58", Tensor::concat(&[&part; 64], 1), Kind::Shape, "[0, 288230376151711744]")
        .and(refused("32 parts of 2^58", Tensor::concat(&[&part; 32], 1), Kind::Shape, "")))
}

fn overflowing_batches(device: &Device) -> Result<Outcome> {
    let zeros = |dims: [usize; 4]| Tensor::zeros(dims, DType::F32, device);
    let (a, b) = (zeros([1 << 32, 1, 0, 3])?, zeros([1, 1 << 32, 3, 0])?);
    let (c, d) = (zeros([1 << 29, 1, 0, 3])?, zeros([1, 1 << 29, 3, 0])?);
    Ok(refused("2^64 products", a.matmul(&b), Kind::Shape, "[4294967296, 1, 0, 3]")
        .and(refused("2^58 products", c.matmul(&d), Kind::Shape, "[536870912, 1, 0, 3]"))
        .and(refused("too many to infer", a.reshape([INFER, 0]), Kind::Shape, "")))
}

fn eps(device: &Device) -> Result<Outcome> {
    let x = Tensor::arange(24, device)?.cast(DType::F32)?.reshape((2, 4, 3))?;
    let index = Tensor::zeros(2, DType::I64, device)?;
    let table = x.reshape((8, 3))?;
    let mut outcome = Ok(());
    for eps in [f64::NAN, -1e-5, f64::NEG_INFINITY] {
        let results = [
            ("layer_norm", x.layer_norm(1, None, None, eps)),
            ("rms_norm", x.rms_norm(1, None, eps)),
            ("embedding_rmsnorm", table.embedding_rmsnorm(&index, None, eps)),
            ("group_norm", x.group_norm(2, None, None, eps)),
            ("batch_norm", x.batch_norm(None, None, Statistics::Batch, eps)),
            ("instance_norm", x.instance_norm(None, None, Statistics::Batch, eps)),
        ];
        for (op, result) in results {
            outcome = outcome.and(refused(&format!("{op} with {eps}"), result, Kind::Attr, "eps is"));
        }
    }
    Ok(outcome)
}

fn not_numbers(device: &Device) -> Result<Outcome> {
    let x = Tensor::arange(6, device)?.cast(DType::F32)?.reshape((2, 3))?;
    let (nan, y) = (f64::NAN, Tensor::ones(2, DType::F32, device)?);
    let triplet = |options| x.triplet_loss(&x, &x, options);
    Ok(refused("var", x.var(1, nan), Kind::Attr, "correction")
        .and(refused("contrastive", x.contrastive_loss(&x, &y, nan, Reduction::Mean), Kind::Attr, "margin"))
        .and(refused("triplet", triplet(&Triplet { eps: nan, ..Triplet::default() }), Kind::Attr, "eps"))
        .and(refused("triplet", triplet(&Triplet { margin: nan, ..Triplet::default() }), Kind::Attr, "margin")))
}

fn integers(device: &Device) -> Result<Outcome> {
    let x = Tensor::arange(3, device)?;
    let mask = x.gt_scalar(0)?;
    let mut outcome = Ok(());
    for (dtype, below, above) in [(DType::I32, i32::MIN as i64 - 1, 1 << 31), (DType::U8, -1, 256)] {
        for value in [below, above, 1 << 40, i64::MIN] {
            let y = x.cast(dtype)?;
            outcome = outcome.and(refused("full", y.full_like(value), Kind::Attr, "does not fit")).and(refused(
                "where_scalar",
                mask.where_scalar(&y, value),
                Kind::Attr,
                "does not fit",
            ));
        }
    }
    let y = x.cast(DType::I32)?;
    let clamp = |lo: Option<i64>, hi: Option<i64>| y.clamp(lo.map(Scalar::Int), hi.map(Scalar::Int));
    // A bound that no element can cross changes nothing.
    let (least, most) = (Some(i64::MIN), Some(1i64 << 40));
    Ok(outcome
        .and(refused("a lower bound", clamp(most, None), Kind::Attr, "does not fit"))
        .and(refused("an upper bound", clamp(None, Some(-(1 << 40))), Kind::Attr, "does not fit"))
        .and(equal("bounds beyond", clamp(least, most)?.to_f64_vec()?, vec![0.0, 1.0, 2.0]))
        .and(equal("bounds within", clamp(Some(1), most)?.to_f64_vec()?, vec![1.0, 1.0, 2.0])))
}

/// Runs calls on the CPU in a process of its own, which has 2 GB.
fn little_memory(device: &Device) -> Option<Trial> {
    if !cfg!(target_os = "linux") || *device != isograd_tests::cpu() {
        return None;
    }
    let run = || {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 2000000 && exec \"$0\""]).arg(program).env(LITTLE_MEMORY, "1");
        let output = command.env("RAYON_NUM_THREADS", "2").output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{}: {said}{error}", output.status)) }
    };
    Some(trial(device, "memory", "calls_that_need_more_than_there_is_are_refused", run))
}

/// Calls whose operands fit into 2 GB, but not what they are computed with.
pub fn within_little_memory() {
    static DOUBLE: CustomOp = CustomOp {
        name: "double",
        output: |x| Ok((x[0].shape().clone(), x[0].dtype())),
        cpu: |call, y| y.iter_mut().zip(&call.inputs[0].elements).for_each(|(y, x)| *y = 2.0 * x),
        source: Source::Common(""),
        launch: Launch::Elements,
        gradient: Gradient::None,
    };
    type Run = fn(&Device) -> Result<()>;
    let calls: [(&str, Run); 11] = [
        ("scatter_sum", |d| {
            let rows = Tensor::ones(2, DType::U8, d)?;
            rows.scatter_sum(&Tensor::arange(2, d)?, Some(1 << 29)).map(drop)
        }),
        ("scatter_mean", |d| {
            let rows = Tensor::ones(2, DType::U8, d)?;
            rows.scatter_mean(&Tensor::arange(2, d)?, Some(1 << 28)).map(drop)
        }),
        ("scatter_max", |d| {
            let rows = Tensor::ones(2, DType::U8, d)?;
            rows.scatter_max(&Tensor::arange(2, d)?, Some(1 << 27), TieGrad::Even).map(drop)
        }),
        ("sort", |d| Tensor::ones(1 << 26, DType::U8, d)?.sort(0, Order::Ascending).map(drop)),
        ("cumsum", |d| Tensor::ones(1 << 27, DType::U8, d)?.cumsum(0).map(drop)),
        ("nonzero", |d| Tensor::ones(1 << 28, DType::Bool, d)?.nonzero().map(drop)),
        ("matmul", |d| {
            let row = Tensor::ones((1, 1 << 28), DType::F16, d)?;
            row.matmul(&row.t()?).map(drop)
        }),
        ("avg_pool1d", |d| {
            let x = Tensor::ones((1, 1, 1 << 26), DType::F32, d)?;
            x.avg_pool1d(&AvgPool { stride: [1], ..AvgPool::new([16]) }).map(drop)
        }),
        ("to_vec", |d| Tensor::ones(1 << 28, DType::I32, d)?.to_vec::<i32>().map(drop)),
        ("from_slice", |d| Tensor::from_slice(&vec![1i64; 1 << 27], 1 << 27, d).map(drop)),
        ("double", |d| DOUBLE.call(&[&Tensor::ones(1 << 27, DType::U8, d)?]).map(drop)),
    ];
    let device = isograd_tests::cpu();
    let mut failures = 0;
    for (op, run) in calls {
        match run(&device) {
            Err(e) if e.kind() == Kind::OutOfMemory => {}
            other => {
                failures += 1;
                println!("{op}: {other:?}");
            }
        }
    }
    // All goes on.
    let sum = Tensor::ones(1000, DType::F32, &device).and_then(|x| x.sum(..)?.item::<f64>());
    assert_eq!(sum.ok(), Some(1000.0));
    std::process::exit((failures > 0) as i32);
}
