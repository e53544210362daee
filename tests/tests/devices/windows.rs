//! Views of windows, which share elements: kernels read them as they read copies, and gradients are sums over windows.

use isograd::ops::{Conv, MaxPool, Order};
use isograd::{DType, Device, Result, Tensor};
use isograd_tests::harness::{equal, text, trial};
use libtest_mimic::Trial;

type Outcome = std::result::Result<(), String>;
type Op = fn(&Tensor) -> Result<Tensor>;

pub fn trials(device: &Device) -> Vec<Trial> {
    let reads = READS.iter().map(|&(op, f)| {
        let at = device.clone();
        trial(device, op, "reads_windows", move || reads(&at, f).map_err(text)?)
    });
    let sums = SUMS.iter().map(|&(name, extent, size, step)| {
        let at = device.clone();
        trial(device, "windows", name, move || sums(&at, [extent, size, step]).map_err(text)?)
    });
    let at = device.clone();
    let most = trial(device, "windows", "as_many_dimensions_as_there_are", move || most(&at).map_err(text)?);
    reads.chain(sums).chain([most]).collect()
}

/// Ops of windows `[3, 40, 16]`, each of which shares 13 elements with the next.
const READS: &[(&str, Op)] = &[
    ("copy", Tensor::copy),
    ("cast", |x| x.cast(DType::F64)),
    ("relu", Tensor::relu),
    ("add", |x| x.add(&x.select(1, 0)?.unsqueeze(1)?)),
    ("sum", |x| x.sum(1)),
    ("amax", |x| x.amax(-1)),
    ("argmax", |x| x.argmax(1)),
    ("cumsum", |x| x.cumsum(1)),
    ("sort", |x| Ok(x.sort(-1, Order::Ascending)?.0)),
    ("softmax", |x| x.softmax(-1)),
    ("layer_norm", |x| x.layer_norm(1, None, None, 1e-5)),
    ("matmul", |x| x.matmul(&x.t()?)),
    ("linear", |x| x.linear(&x.select(0, 0)?.narrow(0, 1, 8)?, None)),
    ("conv1d", |x| x.conv1d(&Tensor::ones((4, 40, 3), x.dtype(), x.device())?, None, &Conv::default())),
    ("max_pool1d", |x| x.max_pool1d(&MaxPool::new([3]))),
    ("gather", |x| x.gather(1, &Tensor::zeros((3, 2, 16), DType::I64, x.device())?)),
    ("index_select", |x| x.index_select(1, &Tensor::from_slice(&[39i64, 0, 1], 3, x.device())?)),
    ("scatter_add", |x| {
        let index = Tensor::zeros(x.shape(), DType::I64, x.device())?;
        Tensor::zeros((3, 1, 16), x.dtype(), x.device())?.scatter_add(1, &index, x)
    }),
    ("concat", |x| Tensor::concat(&[x, x], 1)),
    ("reshape", |x| x.reshape((120, 16))),
];

/// The op of a view gives what the op of a copy does, but for the order of sums. Elements are small integers, whose sums are exact.
fn reads(device: &Device, f: Op) -> Result<Outcome> {
    for (dtype, ulp) in [(DType::F32, 2f64.powi(-23)), (DType::F16, 2f64.powi(-10))] {
        let numbers =
            Tensor::arange(3 * 133, device)?.mul_scalar(37)?.remainder(&Tensor::full((), 7, DType::I64, device)?)?;
        let whole = numbers.sub_scalar(3)?.cast(dtype)?.reshape((3, 133))?;
        let view = whole.windows(1, 16, 3)?;
        assert_eq!((view.dims(), view.layout().strides()), (&[3, 40, 16][..], &[133, 3, 1][..]));
        let [found, expected] = [f(&view)?, f(&view.copy()?)?];
        let pairs = found.to_f64_vec()?.into_iter().zip(expected.to_f64_vec()?);
        let is_near = |(a, b): (f64, f64)| (a - b).abs() <= 4.0 * ulp * b.abs();
        if found.dims() != expected.dims() || !pairs.into_iter().all(is_near) {
            return Ok(Err(format!("{dtype}: {found:?}, of a copy {expected:?}")));
        }
    }
    Ok(Ok(()))
}

/// Extents, sizes and steps.
const SUMS: &[(&str, usize, usize, usize)] = &[
    ("few_long_windows", 100_001, 100_000, 1),
    ("many_short_windows", 100_001, 2, 1),
    ("as_many_windows_as_elements", 999, 500, 1),
    ("a_rest_of_a_step", 1003, 10, 4),
    ("gaps", 1000, 3, 7),
    ("one_window_and_a_large_step", 10, 10, usize::MAX),
];

/// The gradient of a sum over windows counts the windows of each element.
fn sums(device: &Device, [extent, size, step]: [usize; 3]) -> Result<Outcome> {
    let x = Tensor::zeros(extent, DType::F32, device)?.require_grad()?;
    x.windows(0, size, step)?.sum(..)?.backward()?;
    let count = (extent - size) / step + 1;
    let of = |i: usize| (0..count).filter(|w| (w * step..w * step + size).contains(&i)).count() as f32;
    let ends = (0..extent.min(60)).chain(extent.saturating_sub(60)..extent);
    let dx = x.grad().expect("a gradient").to_vec::<f32>()?;
    let (found, expected): (Vec<f32>, Vec<f32>) = ends.map(|i| (dx[i], of(i))).unzip();
    Ok(equal("the numbers of windows", found, expected))
}

fn most(device: &Device) -> Result<Outcome> {
    let x = Tensor::ones([1, 2, 1, 5, 1, 2, 1], DType::F32, device)?.require_grad()?;
    x.windows(3, 3, 1)?.sum(..)?.backward()?;
    let dx = x.grad().expect("a gradient").select(1, 1)?.select(4, 0)?.reshape(5)?;
    Ok(equal("the numbers of windows", dx.to_vec::<f32>()?, vec![1.0, 2.0, 3.0, 2.0, 1.0]))
}
