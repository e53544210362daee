//! Tensors `[N, C, ..]` whose channels are last in memory: ops compute what they compute for other tensors, and keep the order.

use isograd::ops::{AvgPool, Conv, ConvTranspose, MaxPool, Padding, Statistics};
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Result, Tensor, no_grad};
use isograd_tests::cpu;
use isograd_tests::harness::{text, trial};
use libtest_mimic::Trial;
use std::sync::{Arc, Mutex};

type Outcome = std::result::Result<(), String>;
type Op = fn(&[Tensor]) -> Result<Tensor>;

pub fn trials(device: &Device) -> Vec<Trial> {
    // Matrix units multiply in 16 bits, and depthwise convolutions read words of more channels.
    let is_tried =
        |case: &Case, dtype| dtype == DType::F32 || case.is_depthwise() || (case.has_words && at_gpu(device));
    let cases = CONVOLUTIONS.iter().flat_map(|case| [DType::F32, DType::F16].map(|dtype| (case, dtype)));
    let convolutions = cases.filter(|&(case, dtype)| is_tried(case, dtype)).map(|(case, dtype)| {
        let at = device.clone();
        let name = format!("{}::{dtype}", case.name);
        trial(device, case.op, &name, move || case.check(&at, dtype).map_err(text)?)
    });
    let others = KEPT.iter().map(|&(op, f)| {
        let at = device.clone();
        trial(device, op, "keeps_the_order", move || keeps(&at, f).map_err(text)?)
    });
    let networks = NETWORKS.iter().map(|&(op, name, shapes, f)| {
        let at = device.clone();
        trial(device, op, name, move || is_as_row_major(&at, shapes, f).map_err(text)?)
    });
    let at = device.clone();
    let blocks = trial(device, "batch_norm_relu", "a_result_with_two_uses", move || blocks(&at).map_err(text)?);
    let at = device.clone();
    let copies =
        trial(device, "contiguous", "a_copy_to_another_order_has_the_bits", move || copies(&at).map_err(text)?);
    convolutions.chain(others).chain(networks).chain([blocks, copies]).collect()
}

/// Copies of tensors that are large enough to be copied by tiles, between the orders and of transposed matrices.
fn copies(device: &Device) -> Result<Outcome> {
    let shapes: [&[usize]; 5] =
        [&[2, 40, 33, 31], &[70_000, 1, 1, 2], &[3, 3, 97, 101], &[1, 65, 1024, 1], &[3, 300, 100, 1]];
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I64, DType::U8] {
        for shape in shapes {
            let numbers = (0..shape.iter().product()).map(|i: usize| (i * 7919 % 251) as f32).collect::<Vec<_>>();
            let host = Tensor::from_vec(numbers, shape, &cpu())?.cast(dtype)?;
            let x = host.to_device(device)?;
            let last = x.to_channels_last()?;
            for (what, got, expected) in [
                (
                    "channels last",
                    last.permute(&[0, 2, 3, 1])?.contiguous()?,
                    host.permute(&[0, 2, 3, 1])?.contiguous()?,
                ),
                ("row-major", last.contiguous()?, host.clone()),
                (
                    "a part",
                    last.narrow(1, shape[1] / 2, 1)?.contiguous()?,
                    host.narrow(1, shape[1] / 2, 1)?.contiguous()?,
                ),
                ("transposed", x.permute(&[3, 1, 2, 0])?.contiguous()?, host.permute(&[3, 1, 2, 0])?.contiguous()?),
            ] {
                if got.to_bytes()? != expected.to_bytes()? {
                    return Ok(Err(format!("{what} {dtype} {shape:?}")));
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Whether the device may have matrix units.
fn at_gpu(device: &Device) -> bool {
    ["cuda", "hip"].iter().any(|name| device.name().starts_with(name))
}

/// A convolution of small integers, whose sums are exact in every dtype.
struct Case {
    name: &'static str,
    op: &'static str,
    x: &'static [usize],
    weight: &'static [usize],
    bias: usize,
    /// Whether channels and outputs are whole words, in one group.
    has_words: bool,
    run: Op,
}

const PADDED: Conv<2> = Conv { stride: [1; 2], padding: Padding::Each([1; 2]), dilation: [1; 2], groups: 1 };

const CONVOLUTIONS: &[Case] = &[
    Case {
        name: "words_of_channels",
        op: "conv2d",
        x: &[2, 40, 7, 11],
        weight: &[24, 40, 3, 3],
        bias: 24,
        has_words: true,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &PADDED),
    },
    Case {
        name: "large_tiles",
        op: "conv2d",
        x: &[1, 64, 16, 24],
        weight: &[64, 64, 3, 3],
        bias: 64,
        has_words: true,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &PADDED),
    },
    Case {
        name: "strided",
        op: "conv2d",
        x: &[3, 8, 13, 9],
        weight: &[16, 8, 3, 2],
        bias: 16,
        has_words: true,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { stride: [2, 3], dilation: [2, 1], ..PADDED }),
    },
    Case {
        name: "no_whole_words",
        op: "conv2d",
        x: &[2, 3, 7, 8],
        weight: &[5, 3, 3, 3],
        bias: 5,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &PADDED),
    },
    Case {
        name: "groups",
        op: "conv2d",
        x: &[2, 16, 5, 4],
        weight: &[16, 8, 3, 3],
        bias: 16,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 2, ..PADDED }),
    },
    Case {
        name: "windows_of_one_element",
        op: "conv2d",
        x: &[2, 16, 5, 6],
        weight: &[24, 16, 1, 1],
        bias: 24,
        has_words: true,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv::default()),
    },
    Case {
        name: "volumes",
        op: "conv3d",
        x: &[2, 8, 4, 5, 3],
        weight: &[16, 8, 2, 3, 3],
        bias: 16,
        has_words: true,
        run: |x| x[0].conv3d(&x[1], Some(&x[2]), &Conv { padding: Padding::Each([1; 3]), ..Conv::default() }),
    },
    Case {
        name: "transposed",
        op: "conv_transpose2d",
        x: &[2, 8, 5, 4],
        weight: &[8, 16, 3, 3],
        bias: 16,
        has_words: true,
        run: |x| {
            x[0].conv_transpose2d(&x[1], Some(&x[2]), &ConvTranspose { stride: [2; 2], ..ConvTranspose::default() })
        },
    },
    Case {
        name: "depthwise",
        op: "conv2d",
        x: &[3, 24, 9, 11],
        weight: &[24, 1, 3, 3],
        bias: 24,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 24, ..PADDED }),
    },
    Case {
        name: "depthwise_strided",
        op: "conv2d",
        x: &[2, 32, 14, 15],
        weight: &[32, 1, 3, 3],
        bias: 32,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 32, stride: [2; 2], ..PADDED }),
    },
    Case {
        name: "depthwise_of_odd_channels",
        op: "conv2d",
        x: &[2, 7, 8, 13],
        weight: &[7, 1, 5, 5],
        bias: 7,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 7, padding: Padding::Each([2; 2]), ..PADDED }),
    },
    Case {
        name: "depthwise_strided_more_than_a_window",
        op: "conv2d",
        x: &[2, 12, 11, 17],
        weight: &[12, 1, 2, 3],
        bias: 12,
        has_words: false,
        run: |x| {
            let conv = Conv { groups: 12, stride: [3, 4], dilation: [1, 2], padding: Padding::Ends([[2, 0], [1, 3]]) };
            x[0].conv2d(&x[1], Some(&x[2]), &conv)
        },
    },
    Case {
        name: "depthwise_of_long_windows",
        op: "conv2d",
        x: &[1, 16, 10, 12],
        weight: &[16, 1, 7, 7],
        bias: 16,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 16, padding: Padding::Each([3; 2]), ..PADDED }),
    },
    Case {
        name: "depthwise_of_lines",
        op: "conv1d",
        x: &[3, 16, 70],
        weight: &[16, 1, 3],
        bias: 16,
        has_words: false,
        run: |x| {
            let conv = Conv { groups: 16, stride: [2], padding: Padding::Each([1]), ..Conv::default() };
            x[0].conv1d(&x[1], Some(&x[2]), &conv)
        },
    },
    Case {
        name: "depthwise_transposed",
        op: "conv_transpose2d",
        x: &[2, 16, 5, 6],
        weight: &[16, 1, 4, 4],
        bias: 16,
        has_words: false,
        run: |x| {
            let conv = ConvTranspose { stride: [2; 2], padding: [1; 2], groups: 16, ..ConvTranspose::default() };
            x[0].conv_transpose2d(&x[1], Some(&x[2]), &conv)
        },
    },
    // Two outputs of each channel.
    Case {
        name: "depthwise_of_several_outputs",
        op: "conv2d",
        x: &[2, 8, 6, 9],
        weight: &[16, 1, 3, 3],
        bias: 16,
        has_words: false,
        run: |x| x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 8, ..PADDED }),
    },
];

/// Small integers in an irregular order.
fn integers(shape: &[usize], seed: usize, device: &Device, dtype: DType) -> Result<Tensor> {
    let n = shape.iter().product();
    let values = (0..n).map(|i| ((i * 7 + i / 5 + seed * 3) % 5) as f32 - 2.0).collect::<Vec<_>>();
    Tensor::from_vec(values, shape, device)?.cast(dtype)
}

/// The result and the gradients of all leaves.
fn computed(f: Op, leaves: &[Tensor]) -> Result<Vec<Tensor>> {
    let leaves = leaves.iter().map(Tensor::require_grad).collect::<Result<Vec<_>>>()?;
    let y = f(&leaves)?;
    let gradient = integers(y.dims(), 3, y.device(), y.dtype())?;
    let gradient = if y.is_channels_last() { gradient.to_channels_last()? } else { gradient };
    let options = BackwardOptions { gradient: Some(gradient), ..Default::default() };
    let gradients = grad_with(&y, &leaves.iter().collect::<Vec<_>>(), &options)?;
    Ok([y].into_iter().chain(gradients).collect())
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.cast(DType::F64)?.to_device(&Device::cpu()?)?.to_vec()
}

fn differs(what: &str, got: &[Tensor], expected: &[Tensor]) -> Result<Outcome> {
    for (k, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (values(got)?, values(expected)?);
        if let Some(i) = (0..got.len()).find(|&i| (got[i] - expected[i]).abs() > 1e-4 * (1.0 + expected[i].abs())) {
            return Ok(Err(format!("{what}, result {k}: element {i} is {}, expected {}", got[i], expected[i])));
        }
    }
    Ok(Ok(()))
}

impl Case {
    fn is_depthwise(&self) -> bool {
        self.weight[1] == 1
    }

    fn leaves(&self, device: &Device, dtype: DType) -> Result<[Tensor; 3]> {
        let shapes: [&[usize]; 3] = [self.x, self.weight, &[self.bias]];
        let of = |k: usize| integers(shapes[k], k, device, dtype);
        Ok([of(0)?, of(1)?, of(2)?])
    }

    fn check(&self, device: &Device, dtype: DType) -> Result<Outcome> {
        let expected = computed(self.run, &self.leaves(&Device::cpu()?, DType::F64)?)?;
        let [x, weight, bias] = self.leaves(device, dtype)?;
        // Row-major operands in f32 are tested elsewhere.
        let all = [("row-major", [false; 2]), ("x last", [true, false]), ("both last", [true; 2])];
        for (what, are_last) in all.into_iter().skip((dtype == DType::F32).into()) {
            let ordered = |t: &Tensor, is_last| if is_last { t.to_channels_last() } else { Ok(t.clone()) };
            let leaves = [ordered(&x, are_last[0])?, ordered(&weight, are_last[1])?, bias.clone()];
            let found = computed(self.run, &leaves)?;
            if let Err(error) = differs(what, &found, &expected)? {
                return Ok(Err(error));
            }
            let orders = [found[0].is_channels_last(), found[1].is_channels_last(), found[2].is_channels_last()];
            let wanted = [are_last[0], leaves[0].is_channels_last(), leaves[1].is_channels_last()];
            if orders != wanted {
                return Ok(Err(format!("{what}: y, dx and dw are channels last: {orders:?}, expected {wanted:?}")));
            }
        }
        Ok(Ok(()))
    }
}

/// Ops of x `[2, 5, 3, 4]` that keep the order of x, and give it to their gradient.
const KEPT: &[(&str, Op)] = &[
    ("relu", |x| x[0].relu()),
    ("gelu", |x| x[0].gelu(isograd::ops::Approximate::None)),
    ("add", |x| x[0].add(&x[0])),
    ("mul", |x| x[0].mul(&Tensor::ones((1, 5, 1, 1), DType::F32, x[0].device())?)),
    ("batch_norm", |x| x[0].batch_norm(None, None, Statistics::Batch, 1e-5)),
    ("max_pool2d", |x| x[0].max_pool2d(&MaxPool { stride: [1, 2], padding: [1, 1], ..MaxPool::new([3, 3]) })),
    ("max_pool2d", |x| x[0].max_pool2d(&MaxPool { dilation: [2, 1], ceil_mode: true, ..MaxPool::new([2, 3]) })),
    ("max_pool2d", |x| {
        no_grad(|| x[0].max_pool2d(&MaxPool::new([2, 2])))?.add(&x[0].narrow(2, 0, 1)?.narrow(3, 0, 2)?)
    }),
    ("avg_pool2d", |x| x[0].avg_pool2d(&AvgPool { padding: [1, 0], ..AvgPool::new([2, 2]) })),
    ("adaptive_max_pool2d", |x| x[0].adaptive_max_pool2d([2, 3])),
    ("adaptive_avg_pool2d", |x| x[0].adaptive_avg_pool2d([2, 3])),
    ("max_pool1d", |x| x[0].reshape((2, 5, 12))?.max_pool1d(&MaxPool::new([3]))),
    ("concat", |x| Tensor::concat(&[&x[0], &x[0].neg()?, &x[0]], 1)),
    ("concat", |x| Tensor::concat(&[&x[0].relu()?, &x[0]], 2)),
    ("narrow", |x| {
        x[0].narrow(1, 1, 3)?.mul(&x[0].narrow(1, 2, 3)?)?.conv2d(
            &Tensor::ones((2, 3, 2, 2), DType::F32, x[0].device())?,
            None,
            &PADDED,
        )
    }),
];

/// Ops whose tensors change their shape: the leaves of each. The result of the last op may be a number.
type Network = (&'static str, &'static str, &'static [&'static [usize]], Op);

const NETWORKS: &[Network] = &[
    (
        "conv_transpose2d",
        "of_a_u_net",
        &[&[2, 1, 12, 8], &[8, 1, 3, 3], &[16, 8, 3, 3], &[16, 8, 2, 2], &[8], &[8, 16, 3, 3], &[3, 8, 1, 1]],
        |x| {
            let level = x[0].conv2d(&x[1], None, &PADDED)?.relu()?;
            let low = level.max_pool2d(&MaxPool::new([2, 2]))?.conv2d(&x[2], None, &PADDED)?.relu()?;
            let doubled = ConvTranspose { stride: [2; 2], ..ConvTranspose::default() };
            let joined = Tensor::concat(&[&level, &low.conv_transpose2d(&x[3], Some(&x[4]), &doubled)?], 1)?;
            joined.conv2d(&x[5], None, &PADDED)?.relu()?.conv2d(&x[6], None, &Conv::default())
        },
    ),
    ("cross_entropy", "of_pixels", &[&[2, 5, 3, 4]], |x| {
        let target = Tensor::arange_with(0.0, 24.0, 1.0, DType::F32, x[0].device())?;
        x[0].cross_entropy(&target.div_scalar(5)?.cast(DType::I64)?.reshape((2, 3, 4))?)
    }),
    ("max_pool2d", "of_a_stem", &[&[2, 3, 14, 10], &[8, 3, 7, 7], &[8, 8, 3, 3]], |x| {
        let stem = Conv { stride: [2; 2], padding: Padding::Each([3; 2]), ..PADDED };
        let pool = MaxPool { stride: [2; 2], padding: [1; 2], ..MaxPool::new([3; 2]) };
        let x0 = x[0].conv2d(&x[1], None, &stem)?.relu()?.max_pool2d(&pool)?;
        x0.conv2d(&x[2], None, &PADDED)?.add(&x0)
    }),
];

/// Results are those of row-major leaves, and gradients have the orders of the leaves.
fn is_as_row_major(device: &Device, shapes: &[&[usize]], f: Op) -> Result<Outcome> {
    let leaves = |device: &Device, dtype| -> Result<Vec<Tensor>> {
        shapes.iter().enumerate().map(|(k, shape)| integers(shape, k, device, dtype)).collect()
    };
    let expected = computed(f, &leaves(&Device::cpu()?, DType::F64)?)?;
    let row_major = leaves(device, DType::F32)?;
    let ordered = |x: &Tensor| if x.rank() > 2 { x.to_channels_last() } else { Ok(x.clone()) };
    let last = row_major.iter().map(ordered).collect::<Result<Vec<_>>>()?;
    for (what, leaves) in [("row-major", row_major), ("channels last", last)] {
        let found = computed(f, &leaves)?;
        if let Err(error) = differs(what, &found, &expected)? {
            return Ok(Err(error));
        }
        let is_last = what != "row-major";
        if found[0].rank() > 2 && found[0].is_channels_last() != is_last {
            return Ok(Err(format!("{what}: the result is channels last: {}", found[0].is_channels_last())));
        }
        for (k, (gradient, leaf)) in found[1..].iter().zip(&leaves).enumerate() {
            if leaf.is_channels_last() != gradient.is_channels_last() {
                return Ok(Err(format!("{what}: the gradient of leaf {k} has another order")));
            }
        }
    }
    Ok(Ok(()))
}

fn keeps(device: &Device, f: Op) -> Result<Outcome> {
    let x = integers(&[2, 5, 3, 4], 1, device, DType::F32)?;
    let (expected, found) = (computed(f, std::slice::from_ref(&x))?, computed(f, &[x.to_channels_last()?])?);
    if let Err(error) = differs("channels last", &found, &expected)? {
        return Ok(Err(error));
    }
    if found.iter().all(Tensor::is_channels_last) {
        return Ok(Ok(()));
    }
    Ok(Err(format!(
        "channels last: {:?}, expected all",
        found.iter().map(Tensor::is_channels_last).collect::<Vec<_>>()
    )))
}

/// Residual blocks, whose norms get a gradient from the next block and one from its shortcut: results and gradients are those of the CPU in f64,
/// also that of a block's result, which the caller and a hook read.
fn blocks(device: &Device) -> Result<Outcome> {
    let (expected, _) = of_blocks(&cpu(), DType::F64, false)?;
    for is_last in [false, true] {
        let (found, seen) = of_blocks(device, DType::F32, is_last)?;
        let found_of = format!("channels last: {is_last}");
        if let Err(error) = differs(&found_of, &found, &expected)?.and(differs(&found_of, &[seen], &expected[1..2])?) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// The result, and the gradients of the first block's result, of x, the weight and the bias; then the first again, as a hook sees it, without
/// being asked for.
fn of_blocks(device: &Device, dtype: DType, is_last: bool) -> Result<(Vec<Tensor>, Tensor)> {
    let wave = |shape: &[usize], step: f64| -> Result<Tensor> {
        let n = shape.iter().product::<usize>() as f64;
        Tensor::arange_with(0.0, n, 1.0, DType::F64, &cpu())?
            .mul_scalar(step)?
            .sin()?
            .reshape(shape)?
            .cast(dtype)?
            .to_device(device)
    };
    let x = wave(&[4, 16, 6, 6], 0.7)?;
    let x = if is_last { x.to_channels_last()? } else { x }.require_grad()?;
    let (weight, bias) = (wave(&[16], 1.3)?.require_grad()?, wave(&[16], 0.9)?.require_grad()?);
    let relu = |x: &Tensor, residual| x.batch_norm_relu(Some(&weight), Some(&bias), Statistics::Batch, 1e-5, residual);
    let first = relu(&x, None)?;
    let branch = |x: &Tensor| x.mul(&wave(&[4, 16, 6, 6], 0.31)?);
    let second = relu(&branch(&first)?, Some(&first))?;
    let third = relu(&branch(&second)?, Some(&second))?;
    let gradient = wave(&[4, 16, 6, 6], 1.1)?;
    let options = |retain| BackwardOptions { gradient: Some(gradient.clone()), retain, ..Default::default() };
    let mut found = grad_with(&third, &[&first, &x, &weight, &bias], &options(true))?;
    let again = grad_with(&third, &[&x, &weight, &bias], &options(true))?;
    // Terms that nobody reads are added by the kernel.
    if let Err(error) = differs("without the block's result", &again, &found[1..])? {
        return Err(isograd::Error::value("batch_norm_relu", error));
    }
    let seen = Arc::new(Mutex::new(None));
    let place = seen.clone();
    first.register_hook(move |dy| {
        *place.lock().expect("no panic") = Some(dy.clone());
        Ok(None)
    })?;
    grad_with(&third, &[&x], &options(false))?;
    found.insert(0, third);
    let seen = seen.lock().expect("no panic").take();
    Ok((found, seen.expect("the hook ran")))
}
