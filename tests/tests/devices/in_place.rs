//! Changes in place: what they refuse, alike on every device, and gradients of what overwrites.

use isograd::nn::{Optimizer, Sgd, clip_grad_value};
use isograd::ops::{Index, Put, Running, Statistics, Update, unscale_, update_, update_each_, update_each_norms_};
use isograd::pointwise::Pointwise;
use isograd::tape::{BackwardOptions, GradcheckOptions, grad_with, gradcheck, gradgradcheck};
use isograd::{DType, Device, Kind, Result, Tensor};
use isograd_tests::harness::{self, Check, Outcome, equal, text, trial};
use libtest_mimic::Trial;

pub fn trials(device: &Device) -> Vec<Trial> {
    let overlaps = WRITES.iter().map(|&(op, write)| {
        let at = device.clone();
        trial(device, op, "elements_in_one_place_are_not_written", move || refuses_overlap(&at, op, write))
    });
    let dtypes = DTYPES.iter().map(|&(op, attempts)| {
        let at = device.clone();
        trial(device, op, "a_dtype_that_its_documentation_excludes", move || refuses_dtypes(&at, attempts))
    });
    let checks: [(&str, &str, Check); 6] = [
        ("update_", "targets_in_one_memory_are_refused", targets_in_one_memory),
        ("unscale_", "found_inf_among_the_gradients_is_refused", found_inf_among_gradients),
        ("clip_grad_value", "a_gradient_that_threads_share", large_gradient),
        ("in_place", "views_of_distinct_places_are_written", distinct_places),
        ("scatter", "an_overwritten_source_has_no_gradient", overwritten_sources),
        ("index_put", "an_overwritten_value_has_no_gradient", overwritten_values),
    ];
    let checks = checks.map(|(op, aspect, check)| harness::check(device, op, aspect, check));
    overlaps.chain(dtypes).chain(checks).collect::<Vec<Trial>>()
}

/// Three rows of 4 elements: all of them one row, and windows that share three elements with the next.
fn overlapping(device: &Device) -> Result<[Tensor; 2]> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
    Ok([zeros(&[1, 4])?.broadcast_to((3, 4))?, zeros(&[6])?.windows(0, 4, 1)?])
}

fn ones(device: &Device, shape: &[usize]) -> Result<Tensor> {
    Tensor::ones(shape, DType::F32, device)
}

/// Writes to this tensor, `[3, 4]`.
type Write = fn(&Tensor) -> Result<()>;

const WRITES: &[(&str, Write)] = &[
    ("fill_", |y| y.fill_(2.0)),
    ("copy_", |y| y.copy_(&ones(y.device(), &[3, 4])?)),
    ("add_", |y| y.add_(&ones(y.device(), &[3, 4])?)),
    ("mul_", |y| y.mul_(&ones(y.device(), &[3, 4])?)),
    ("scatter_add_", |y| {
        y.scatter_add_(0, &Tensor::zeros((1, 4), DType::I64, y.device())?, &ones(y.device(), &[1, 4])?)
    }),
    ("index_add_", |y| y.index_add_(0, &Tensor::zeros(1, DType::I64, y.device())?, &ones(y.device(), &[1, 4])?, 1)),
    ("index_put_", |y| {
        let index = Index::Tensor(Tensor::zeros(1, DType::I64, y.device())?);
        y.index_put_(std::slice::from_ref(&index), &ones(y.device(), &[1, 4])?, Put::Assign)?;
        y.index_put_(&[index], &ones(y.device(), &[1, 4])?, Put::Accumulate)
    }),
    ("update_", |y| update_(Pointwise::Accumulate, &[y], &[&ones(y.device(), &[3, 4])?], &[])),
    ("update_each_", |y| {
        let (whole, x) = (ones(y.device(), &[3, 4])?, ones(y.device(), &[3, 4])?);
        let set = |t| Update { targets: vec![t], inputs: vec![&x], numbers: Vec::new() };
        let result = update_each_(Pointwise::Accumulate, &[set(&whole), set(y)], &[], &[]);
        // Of sets of which one is refused none has changed.
        let expected = if result.is_ok() { 2.0 } else { 1.0 };
        assert_eq!(whole.to_f64_vec()?, vec![expected; 12]);
        result
    }),
    ("update_each_norms_", |y| {
        let (g, one) = (ones(y.device(), &[3, 4])?, ones(y.device(), &[])?);
        let set = Update { targets: vec![y], inputs: vec![&g], numbers: Vec::new() };
        update_each_norms_(Pointwise::LarsNorms, &[set], &[&one], &[1.0]).map(drop)
    }),
    ("unscale_", |y| {
        let number = |v: f32| Tensor::scalar(v, y.device());
        unscale_(&[y], &number(2.0)?, &number(0.0)?)
    }),
    ("batch_norm", |y| normalise(y, |x, running| x.batch_norm(None, None, Statistics::Update(running), 1e-5))),
    ("instance_norm", |y| normalise(y, |x, running| x.instance_norm(None, None, Statistics::Update(running), 1e-5))),
    ("optimizer", |y| {
        let p = y.require_grad()?;
        p.mul(&p)?.sum(..)?.backward()?;
        Sgd::from_parameters(vec![p]).lr(0.1).step()
    }),
    ("clip_grad_value", |y| {
        let p = ones(y.device(), &[3, 4])?.require_grad()?;
        p.set_grad(Some(y.clone()))?;
        clip_grad_value(&[p], 1.0)
    }),
];

/// Updates running variances that are a column of `y`.
fn normalise(y: &Tensor, norm: fn(&Tensor, Running<'_>) -> Result<Tensor>) -> Result<()> {
    let x = Tensor::arange(18, y.device())?.cast(DType::F32)?.reshape((2, 3, 3))?;
    let (mean, var) = (ones(y.device(), &[3])?, y.select(1, 0)?);
    norm(&x, Running { mean: &mean, var: &var, batches: None, momentum: Some(0.1) }).map(drop)
}

fn refuses_overlap(device: &Device, op: &str, write: Write) -> Outcome {
    for y in overlapping(device).map_err(text)? {
        // A column of windows has each element once.
        if ["batch_norm", "instance_norm"].contains(&op) && y.layout().strides()[0] != 0 {
            continue;
        }
        match write(&y) {
            Ok(()) => return Err(format!("it was written to: {y:?}")),
            Err(e) if e.kind() == Kind::Value && e.message().contains("one place") => {}
            Err(e) => return Err(text(e)),
        }
        equal("what was refused", y.to_f64_vec().map_err(text)?, vec![0.0; 12])?;
    }
    Ok(())
}

/// The row has no operands but the gradient.
fn large_gradient(device: &Device) -> Result<Outcome> {
    let p = Tensor::zeros(100_003, DType::F32, device)?.require_grad()?;
    let values: Vec<f32> = (0..100_003).map(|i| (i % 7) as f32 - 3.0).collect();
    p.set_grad(Some(Tensor::from_slice(&values, values.len(), device)?))?;
    clip_grad_value(std::slice::from_ref(&p), 2.0)?;
    let expected: Vec<f32> = values.iter().map(|v| v.clamp(-2.0, 2.0)).collect();
    let found = p.grad().map(|g| g.to_vec::<f32>()).transpose()?;
    Ok(harness::expect(found == Some(expected), "the gradient is not clipped".to_string()))
}

/// Rows, columns, every other element, and what has been expanded without being repeated.
fn distinct_places(device: &Device) -> Result<Outcome> {
    for (op, write) in WRITES {
        let whole = || Tensor::zeros((3, 4), DType::F32, device);
        let views = [
            whole()?,
            Tensor::zeros((4, 3), DType::F32, device)?.t()?,
            Tensor::zeros((3, 8), DType::F32, device)?.slice(1, 1, 8, 2)?,
            Tensor::zeros((6, 4, 5), DType::F32, device)?.select(2, 3)?.slice(0, 0, 6, 2)?,
            Tensor::zeros((1, 3, 1, 4), DType::F32, device)?.broadcast_to((1, 3, 1, 4))?.reshape((3, 4))?,
            Tensor::zeros(14, DType::F32, device)?.windows(0, 4, 5)?,
        ];
        for y in views {
            if let Err(e) = write(&y) {
                return Ok(Err(format!("{op} to strides {:?}: {e}", y.layout().strides())));
            }
        }
    }
    // What has no elements has none in one place.
    let empty = Tensor::zeros((1, 0), DType::F32, device)?.broadcast_to((3, 0))?;
    empty.fill_(1.0)?;
    empty.copy_(&empty.copy()?)?;
    Ok(Ok(()))
}

/// Attempts that must be `Dtype` errors: what is changed has the first dtype, other operands the second.
type Attempt = fn(&Tensor, &Tensor) -> Result<()>;

struct Attempts {
    run: Attempt,
    refused: &'static [(DType, DType)],
    accepted: &'static [(DType, DType)],
}

const NUMBERS: &[(DType, DType)] =
    &[(DType::F32, DType::F32), (DType::I64, DType::I64), (DType::I32, DType::I32), (DType::U8, DType::U8)];
const INTEGERS: &[(DType, DType)] = &[(DType::F32, DType::F32), (DType::I64, DType::I64), (DType::I32, DType::I32)];
const FLOATS: &[(DType, DType)] = &[(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::BF16, DType::BF16)];

const DTYPES: &[(&str, &[Attempts])] = &[
    (
        "copy_",
        &[Attempts {
            run: |y, x| y.copy_(x),
            refused: &[(DType::F32, DType::F16), (DType::I64, DType::I32), (DType::Bool, DType::U8)],
            accepted: &[(DType::Bool, DType::Bool), (DType::U8, DType::U8), (DType::F16, DType::F16)],
        }],
    ),
    (
        "add_",
        &[Attempts {
            run: |y, x| y.add_(x),
            refused: &[
                (DType::Bool, DType::Bool),
                (DType::I32, DType::I64),
                (DType::F32, DType::F16),
                (DType::I64, DType::F32),
            ],
            accepted: NUMBERS,
        }],
    ),
    (
        "mul_",
        &[Attempts {
            run: |y, x| y.mul_(x),
            refused: &[
                (DType::I64, DType::I64),
                (DType::I32, DType::I32),
                (DType::U8, DType::U8),
                (DType::Bool, DType::Bool),
                (DType::I32, DType::F32),
                (DType::F32, DType::I64),
                (DType::F16, DType::F32),
            ],
            accepted: FLOATS,
        }],
    ),
    (
        "update_",
        &[
            Attempts {
                run: |y, x| update_(Pointwise::ScaleInPlace, &[y], &[x], &[]),
                refused: &[
                    (DType::I64, DType::I64),
                    (DType::I32, DType::F32),
                    (DType::U8, DType::F32),
                    (DType::Bool, DType::F32),
                    (DType::F32, DType::I32),
                    (DType::F16, DType::Bool),
                ],
                accepted: &[(DType::F32, DType::F32), (DType::F16, DType::F32), (DType::F32, DType::BF16)],
            },
            Attempts {
                run: |y, x| update_(Pointwise::Accumulate, &[y], &[x], &[]),
                refused: &[
                    (DType::Bool, DType::Bool),
                    (DType::I32, DType::I64),
                    (DType::I64, DType::F32),
                    (DType::F32, DType::I64),
                ],
                accepted: NUMBERS,
            },
        ],
    ),
    (
        "update_each_",
        &[Attempts {
            run: |y, x| {
                let set = Update { targets: vec![y], inputs: vec![x], numbers: Vec::new() };
                update_each_(Pointwise::ScaleInPlace, &[set], &[], &[])
            },
            refused: &[(DType::I64, DType::I64), (DType::Bool, DType::F32), (DType::F32, DType::I32)],
            accepted: FLOATS,
        }],
    ),
    (
        "unscale_",
        &[Attempts {
            run: |y, _| unscale_(&[y], &Tensor::scalar(2f32, y.device())?, &Tensor::scalar(0f32, y.device())?),
            refused: &[(DType::I64, DType::F32), (DType::Bool, DType::F32)],
            accepted: FLOATS,
        }],
    ),
    (
        "scatter_add_",
        &[
            Attempts {
                run: |y, x| y.scatter_add_(0, &Tensor::zeros(1, DType::I64, y.device())?, x),
                refused: &[(DType::F32, DType::F16), (DType::I64, DType::I32), (DType::F32, DType::I64)],
                accepted: INTEGERS,
            },
            Attempts {
                run: |y, x| y.scatter_add_(0, x, &y.copy()?),
                refused: &[(DType::F32, DType::F32), (DType::F32, DType::U8), (DType::F32, DType::Bool)],
                accepted: &[(DType::F32, DType::I64), (DType::F32, DType::I32)],
            },
        ],
    ),
    (
        "index_add_",
        &[
            Attempts {
                run: |y, x| y.index_add_(0, &Tensor::zeros(2, DType::I64, y.device())?, x, 1),
                refused: &[(DType::F32, DType::F16), (DType::I64, DType::I32), (DType::F32, DType::I64)],
                accepted: INTEGERS,
            },
            Attempts {
                run: |y, x| y.index_add_(0, x, &y.copy()?, 0.5),
                refused: &[(DType::I64, DType::I64), (DType::F32, DType::F32)],
                accepted: &[(DType::F32, DType::I64)],
            },
        ],
    ),
    (
        "index_put_",
        &[
            Attempts {
                run: |y, x| {
                    let index = Index::Tensor(Tensor::zeros(2, DType::I64, y.device())?);
                    y.index_put_(&[index], x, Put::Assign)
                },
                refused: &[(DType::F32, DType::F16), (DType::I64, DType::I32), (DType::Bool, DType::U8)],
                accepted: &[(DType::F32, DType::F32), (DType::Bool, DType::Bool), (DType::U8, DType::U8)],
            },
            Attempts {
                run: |y, x| y.index_put_(&[Index::Tensor(x.clone())], &y.copy()?, Put::Accumulate),
                refused: &[(DType::F32, DType::F32), (DType::F32, DType::U8)],
                accepted: &[(DType::F32, DType::I64), (DType::F32, DType::I32)],
            },
        ],
    ),
    (
        "fill_",
        &[Attempts {
            run: |y, _| y.fill_(0.5),
            refused: &[(DType::I64, DType::F32), (DType::U8, DType::F32), (DType::Bool, DType::F32)],
            accepted: FLOATS,
        }],
    ),
    (
        "batch_norm",
        &[Attempts {
            run: |y, x| {
                let input = Tensor::arange(8, y.device())?.cast(DType::F32)?.reshape((2, 2, 2))?;
                let running = Running { mean: y, var: x, batches: None, momentum: Some(0.1) };
                input.batch_norm(None, None, Statistics::Update(running), 1e-5).map(drop)
            },
            refused: &[(DType::I64, DType::F32), (DType::F32, DType::F16), (DType::Bool, DType::F32)],
            accepted: &[(DType::F32, DType::F32)],
        }],
    ),
];

fn refuses_dtypes(device: &Device, attempts: &[Attempts]) -> Outcome {
    attempts.iter().try_for_each(|attempts| refuses(device, attempts))
}

fn refuses(device: &Device, Attempts { run, refused, accepted }: &Attempts) -> Outcome {
    let operand = |dtype| Tensor::ones(2, dtype, device).map_err(text);
    for &(changed, other) in *refused {
        let y = operand(changed)?;
        match run(&y, &operand(other)?) {
            Err(e) if e.kind() == Kind::Dtype => {}
            Err(e) => return Err(format!("{changed} and {other}: {e}")),
            Ok(()) => return Err(format!("{changed} and {other} were accepted: {y:?}")),
        }
        equal("what was refused", y.to_f64_vec().map_err(text)?, vec![1.0; 2])?;
    }
    for &(changed, other) in *accepted {
        let (y, x) = (operand(changed)?, operand(other)?);
        run(&y, &x).map_err(|e| format!("{changed} and {other}: {e}"))?;
    }
    Ok(())
}

fn targets_in_one_memory(device: &Device) -> Result<Outcome> {
    let x = ones(device, &[4])?;
    let (low, high) = (x.narrow(0, 0, 2)?, x.narrow(0, 2, 2)?);
    let (new, share) = (ones(device, &[2])?, ones(device, &[])?);
    let refused =
        |targets: [&Tensor; 2]| match update_(Pointwise::RunningUpdate, &targets, &[&new, &new, &share], &[1.0]) {
            Err(e) if e.kind() == Kind::Value && e.message().contains("shares memory") => Ok(()),
            other => Err(format!("{other:?}")),
        };
    Ok(refused([&low, &low]).and(refused([&low, &high])))
}

fn found_inf_among_gradients(device: &Device) -> Result<Outcome> {
    let (gradients, scale) = (ones(device, &[3])?, Tensor::scalar(2f32, device)?);
    Ok(match unscale_(&[&gradients], &scale, &gradients.select(0, 1)?) {
        Err(e) if e.kind() == Kind::Value && e.message().contains("shares memory") => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

/// The gradients of `[x, src]` for a cotangent of 1, 2, 3, .., by the tape and again by a pass that is recorded.
fn slopes(y: &Tensor, inputs: &[&Tensor]) -> Result<[Vec<Vec<f64>>; 2]> {
    let cotangent = Tensor::arange(y.numel(), y.device())?.add_scalar(1)?.reshape(y.shape())?.cast(y.dtype())?;
    let pass = |create_graph| {
        let options = BackwardOptions { gradient: Some(cotangent.clone()), retain: true, create_graph };
        grad_with(y, inputs, &options)?.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()
    };
    Ok([pass(false)?, pass(true)?])
}

fn overwritten_sources(device: &Device) -> Result<Outcome> {
    let leaf = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, device)?.require_grad();
    let index = |values: &[i64], shape: &[usize]| Tensor::from_slice(values, shape, device);
    // Both to place 0, where the last stays.
    let (x, src) = (leaf(&[1.0, 2.0], &[2])?, leaf(&[10.0, 20.0], &[2])?);
    let y = x.scatter(0, &index(&[0, 0], &[2])?, &src)?;
    let pair = equal("values", y.to_f64_vec()?, vec![20.0, 2.0]).and(equal(
        "two in one place",
        slopes(&y, &[&x, &src])?,
        [vec![vec![0.0, 2.0], vec![0.0, 1.0]], vec![vec![0.0, 2.0], vec![0.0, 1.0]]],
    ));
    // Columns of their own, a source larger than the index, and places that nobody writes.
    let (x, src) = (leaf(&[0.0; 8], &[4, 2])?, leaf(&[1.0; 12], &[4, 3])?);
    let y = x.scatter(0, &index(&[1, 3, 1, 0, 2, 3], &[3, 2])?, &src)?;
    let expected = vec![vec![1.0, 0.0, 0.0, 4.0, 0.0, 6.0, 7.0, 0.0], {
        let mut of = vec![0.0; 12];
        // Row-major over [4, 3]: (1, 0) -> place (1, 0), (1, 1) -> (0, 1), (2, 0) -> (2, 0), (2, 1) -> (3, 1).
        (of[3], of[4], of[6], of[7]) = (3.0, 2.0, 5.0, 8.0);
        of
    }];
    let columns = equal("columns", slopes(&y, &[&x, &src])?, [expected.clone(), expected]);
    // Long enough for every way in which a device finds the last.
    let n = 3000;
    let places: Vec<i64> = (0..n as i64).map(|i| i * i % 37).collect();
    let (x, src) = (leaf(&[0.0; 37], &[37])?, leaf(&vec![1.0; n], &[n])?);
    let y = x.scatter(0, &index(&places, &[n])?, &src)?;
    let last = |i: usize| places.iter().rposition(|&p| p == places[i]) == Some(i);
    let expected: Vec<f64> = (0..n).map(|i| if last(i) { places[i] as f64 + 1.0 } else { 0.0 }).collect();
    let many = equal("many", slopes(&y, &[&src])?, [vec![expected.clone()], vec![expected]]);
    Ok(pair.and(columns).and(many).and(checked_differences(device)?))
}

/// Finite differences of scatters and of assignments at an index, first and second.
fn checked_differences(device: &Device) -> Result<Outcome> {
    if Tensor::ones(1, DType::F64, device).and_then(|x| x.add(&x)?.item::<f64>()).is_err() {
        return Ok(Ok(()));
    }
    let values = |n: usize, at: f64| Tensor::from_vec((0..n).map(|i| at + i as f64).collect::<Vec<f64>>(), n, device);
    let (x, src) = (values(4, 0.5)?, values(5, -2.0)?);
    let index = Tensor::from_slice(&[3i64, 1, 3, 3, 1], 5, device)?;
    let entry = [Index::Tensor(index.clone())];
    let scatter = |t: &[Tensor]| t[0].scatter(0, &index, &t[1])?.square();
    let put = |t: &[Tensor]| t[0].index_put(&entry, &t[1], Put::Assign)?.square();
    let options = GradcheckOptions::default;
    let all = gradcheck(scatter, &[&x, &src], &options())
        .and_then(|()| gradgradcheck(scatter, &[&x, &src], &options()))
        .and_then(|()| gradcheck(put, &[&x, &src], &options()))
        .and_then(|()| gradgradcheck(put, &[&x, &src], &options()));
    Ok(all.map_err(text))
}

fn overwritten_values(device: &Device) -> Result<Outcome> {
    let leaf = |n: usize, shape: &[usize]| Tensor::ones(n, DType::F32, device)?.reshape(shape)?.require_grad();
    let index = Tensor::from_slice(&[2i64, 0, -1, 0], 4, device)?;
    let index = [Index::Tensor(index)];
    // Rows 2 and 0 are written twice; the later ones stay.
    let (x, values) = (leaf(6, &[3, 2])?, leaf(8, &[4, 2])?);
    let y = x.index_put(&index, &values, Put::Assign)?;
    let expected = vec![vec![0.0, 0.0, 3.0, 4.0, 0.0, 0.0], vec![0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 1.0, 2.0]];
    let rows = equal("rows", slopes(&y, &[&x, &values])?, [expected.clone(), expected]);
    // One value for all: the sum of what stays.
    let (x, value) = (leaf(6, &[3, 2])?, leaf(1, &[1])?);
    let y = x.index_put(&index, &value, Put::Assign)?;
    let expected = vec![vec![1.0 + 2.0 + 5.0 + 6.0]];
    let one = equal("one value", slopes(&y, &[&value])?, [expected.clone(), expected]);
    // Elements that a mask and slices name are all different.
    let mask = Tensor::from_slice(&[true, false, true], 3, device)?;
    let (x, values) = (leaf(6, &[3, 2])?, leaf(4, &[2, 2])?);
    let y = x.index_put(&[Index::Tensor(mask)], &values, Put::Assign)?;
    let expected = vec![vec![0.0, 0.0, 3.0, 4.0, 0.0, 0.0], vec![1.0, 2.0, 5.0, 6.0]];
    let masked = equal("a mask", slopes(&y, &[&x, &values])?, [expected.clone(), expected]);
    let (x, values) = (leaf(6, &[3, 2])?, leaf(2, &[2])?);
    let y = x.index_put(&[Index::from(1..3), Index::from(0..1)], &values.reshape((2, 1))?, Put::Assign)?;
    let expected = vec![vec![1.0, 2.0, 0.0, 4.0, 0.0, 6.0], vec![3.0, 5.0]];
    let slices = equal("slices", slopes(&y, &[&x, &values])?, [expected.clone(), expected]);
    Ok(rows.and(one).and(masked).and(slices))
}
