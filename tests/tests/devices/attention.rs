//! Attention over several tiles of queries and keys, which generated cases are too small for: results and gradients against f64.

use isograd::ops::{Attention, Causal};
use isograd::tape::{BackwardOptions, grad_from};
use isograd::{DType, Device, DeviceInfo, Precision, Result, Rng, Tensor};
use isograd_tests::cpu;
use isograd_tests::harness::{self, text, trial};
use libtest_mimic::Trial;

type Outcome = std::result::Result<(), String>;

const OP: &str = "scaled_dot_product_attention";

pub fn trials(device: &Device) -> Vec<Trial> {
    let (at, has_tf32) = (device.clone(), may_have_tf32(device));
    let mut all = vec![trial(device, OP, "launches_of_both_passes", move || launches(&at).map_err(text)?)];
    for (dtype, label) in [(DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "f32")] {
        let at = device.clone();
        let check = move || slices_of_one_tensor(dtype, &at).map_err(text)?;
        all.push(trial(device, OP, &format!("slices_of_one_tensor::{label}"), check));
    }
    for (name, problem) in problems() {
        for (dtype, label) in [(DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "f32")] {
            let (at, problem) = (device.clone(), problem.clone());
            let check = move || is_near(&problem, dtype, unit, &at).map_err(text)?;
            all.push(trial(device, OP, &format!("{name}::{label}"), check));
        }
        if has_tf32 {
            let at = device.clone();
            let check = move || is_near_in_tf32(&problem, &at).map_err(text)?;
            all.push(trial(device, OP, &format!("{name}::tf32"), check));
        }
    }
    all
}

/// A mask of a problem.
#[derive(Clone, Copy)]
enum Mask {
    None,
    /// Bool, `[Tq, Tk]`.
    Bool,
    /// Floats, `[Hq, 1, Tk]`, with some of -infinity. The last query head attends to no key.
    Float,
}

/// The sequences of a problem.
#[derive(Clone, Copy)]
enum Sequences {
    Whole,
    /// The first queries and keys of packed sequences, and their ends.
    Packed([&'static [i64]; 2]),
    /// The numbers of keys of batches.
    Lengths(&'static [i64]),
}

#[derive(Clone)]
struct Problem {
    /// B, Hq, Tq, D.
    queries: [usize; 4],
    /// Hk, Tk.
    keys: [usize; 2],
    causal: Causal,
    window: Option<[usize; 2]>,
    mask: Mask,
    dropout: f64,
    /// True if the logarithms have a gradient.
    has_dlse: bool,
    sequences: Sequences,
}

/// 64 or 128 queries and 64 keys are a tile of matrix units, or 128 or 192 queries and 128 keys; 64 or 32 of each are a tile elsewhere.
fn problems() -> Vec<(&'static str, Problem)> {
    let full = Problem {
        queries: [1, 2, 150, 64],
        keys: [2, 137],
        causal: Causal::None,
        window: None,
        mask: Mask::None,
        dropout: 0.0,
        has_dlse: false,
        sequences: Sequences::Whole,
    };
    let packed = |q: &'static [i64], k: &'static [i64], heads: [usize; 2], width: usize, causal: Causal| Problem {
        // Some rows are behind all sequences.
        queries: [1, heads[0], q[q.len() - 1] as usize + 2, width],
        keys: [heads[1], k[k.len() - 1] as usize + 3],
        causal,
        sequences: Sequences::Packed([q, k]),
        ..full.clone()
    };
    // Lengths of no tile, of parts of one, of whole ones and of several.
    const SAME: &[i64] = &[0, 70, 70, 71, 199, 263];
    const OTHER: &[i64] = &[3, 67, 100, 101, 105, 305];
    let few = |queries: [usize; 4], keys: [usize; 2]| Problem { queries, keys, ..full.clone() };
    let first = Sequences::Lengths(&[513, 0, 700]);
    vec![
        ("packed_sequences", packed(SAME, SAME, [2, 2], 64, Causal::None)),
        ("packed_sequences_before_a_query", packed(SAME, SAME, [2, 1], 64, Causal::TopLeft)),
        (
            "packed_sequences_of_other_keys",
            Problem { has_dlse: true, ..packed(SAME, OTHER, [4, 2], 40, Causal::BottomRight) },
        ),
        ("packed_sequences_of_wide_rows", packed(OTHER, SAME, [1, 1], 128, Causal::TopLeft)),
        (
            "packed_sequences_with_a_window",
            Problem { window: Some([20, 5]), ..packed(SAME, OTHER, [2, 1], 36, Causal::None) },
        ),
        (
            "packed_sequences_with_dropout",
            Problem { dropout: 0.3, ..packed(SAME, OTHER, [2, 1], 64, Causal::BottomRight) },
        ),
        ("first_keys", Problem { sequences: Sequences::Lengths(&[67, 130]), ..few([2, 2, 70, 64], [1, 131]) }),
        (
            "first_keys_before_the_last_query",
            Problem { causal: Causal::BottomRight, sequences: first, ..few([3, 2, 40, 64], [2, 700]) },
        ),
        ("one_query", few([2, 4, 1, 64], [4, 1000])),
        ("one_query_of_first_keys", Problem { sequences: first, ..few([3, 8, 1, 64], [2, 700]) }),
        ("one_query_of_wide_rows", few([1, 3, 1, 256], [1, 600])),
        ("one_query_of_odd_rows", few([1, 3, 1, 33], [3, 600])),
        ("one_query_of_few_keys", few([3, 5, 1, 72], [5, 10])),
        (
            "few_queries_of_many_keys",
            Problem { causal: Causal::BottomRight, sequences: first, ..few([3, 4, 3, 128], [2, 700]) },
        ),
        ("few_queries_with_a_window", Problem { window: Some([200, 100]), ..few([1, 2, 5, 64], [1, 600]) }),
        ("few_queries_with_a_mask", Problem { mask: Mask::Float, ..few([1, 3, 4, 64], [1, 600]) }),
        ("tiles", full.clone()),
        ("less_than_a_tile", few([1, 2, 60, 64], [2, 50])),
        // Three and four tiles of keys add to the gradients of the same queries.
        ("tiles_that_add_in_turn", few([1, 1, 130, 64], [1, 300])),
        (
            "tiles_of_wide_rows_that_add_in_turn",
            Problem { causal: Causal::BottomRight, ..few([1, 2, 200, 128], [1, 400]) },
        ),
        ("tiles_of_wide_rows", Problem { queries: [1, 1, 70, 128], keys: [1, 131], ..full.clone() }),
        ("tiles_of_wide_padded_rows", Problem { queries: [1, 2, 70, 72], keys: [1, 131], ..full.clone() }),
        ("tiles_of_the_widest_rows", Problem { queries: [1, 1, 70, 256], keys: [1, 67], ..full.clone() }),
        ("tiles_of_padded_rows", Problem { queries: [2, 1, 66, 40], keys: [1, 130], has_dlse: true, ..full.clone() }),
        ("tiles_of_grouped_queries", Problem { queries: [2, 4, 65, 16], keys: [2, 96], ..full.clone() }),
        ("tiles_before_a_query", Problem { causal: Causal::TopLeft, has_dlse: true, ..full.clone() }),
        (
            "tiles_before_the_last_query",
            Problem { queries: [1, 2, 70, 64], keys: [1, 201], causal: Causal::BottomRight, ..full.clone() },
        ),
        (
            "queries_without_keys",
            Problem { queries: [1, 1, 201, 32], keys: [1, 70], causal: Causal::BottomRight, ..full.clone() },
        ),
        (
            "tiles_of_a_window",
            Problem { queries: [1, 1, 260, 16], keys: [1, 260], window: Some([40, 20]), ..full.clone() },
        ),
        ("tiles_of_a_mask", Problem { queries: [1, 1, 130, 64], keys: [1, 72], mask: Mask::Bool, ..full.clone() }),
        (
            "tiles_of_an_added_mask",
            Problem { queries: [1, 3, 66, 32], keys: [1, 130], mask: Mask::Float, has_dlse: true, ..full.clone() },
        ),
        (
            "tiles_with_dropout",
            Problem { queries: [2, 2, 131, 32], keys: [1, 67], dropout: 0.3, causal: Causal::TopLeft, ..full },
        ),
    ]
}

impl Problem {
    /// q, k, v, dy and the gradient of the logarithms, rounded to a dtype, in f64. The rows of q, k and v are not contiguous.
    fn operands(&self, dtype: DType) -> Result<[Tensor; 5]> {
        let ([b, heads, queries, width], [of_keys, keys]) = (self.queries, self.keys);
        let normal = |shape: &[usize], seed| {
            let x = Tensor::randn(shape, 0.0, 1.0, DType::F64, &cpu(), &Rng::new(seed))?;
            x.cast(dtype)?.cast(DType::F64)
        };
        let rows = |heads, n, seed| normal(&[b, n, heads, width], seed)?.transpose(1, 2);
        let dlse = normal(&[b, heads, queries], 5)?;
        Ok([rows(heads, queries, 1)?, rows(of_keys, keys, 2)?, rows(of_keys, keys, 3)?, rows(heads, queries, 4)?, dlse])
    }

    fn mask(&self, device: &Device) -> Result<Option<Tensor>> {
        let ([_, heads, queries, _], [_, keys]) = (self.queries, self.keys);
        let draw = |shape: &[usize]| Tensor::rand(shape, 0.0, 1.0, DType::F32, &cpu(), &Rng::new(6));
        let mask = match self.mask {
            Mask::None => return Ok(None),
            Mask::Bool => draw(&[queries, keys])?.lt_scalar(0.6)?,
            Mask::Float => {
                let drawn = draw(&[heads, 1, keys])?;
                let some = drawn.lt_scalar(0.8)?.where_scalar(&drawn, f64::NEG_INFINITY)?;
                let none = Tensor::full([1, 1, keys], f64::NEG_INFINITY, DType::F32, &cpu())?;
                Tensor::concat(&[&some.narrow(0, 0, heads - 1)?, &none], 0)?
            }
        };
        mask.to_device(device).map(Some)
    }

    /// The result, the logarithms, and the gradients of q, k and v.
    fn run(&self, operands: &[Tensor; 5], dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
        let to = |x: &Tensor, dtype| x.cast(dtype)?.to_device(device);
        let [q, k, v] = [0, 1, 2].map(|i| to(&operands[i], dtype).and_then(|x| x.require_grad()));
        let [q, k, v] = [q?, k?, v?];
        let attention = Attention {
            mask: self.mask(device)?,
            causal: self.causal,
            dropout: (self.dropout > 0.0).then(|| (self.dropout, Rng::new(7))),
            window: self.window,
            key_lengths: match self.sequences {
                Sequences::Lengths(lengths) => Some(Tensor::from_slice(lengths, lengths.len(), device)?),
                _ => None,
            },
            ..Attention::default()
        };
        let (o, lse) = match self.sequences {
            Sequences::Packed(starts) => {
                let [q_starts, k_starts] = starts.map(|s| Tensor::from_slice(s, s.len(), device));
                let row = |x: &Tensor| x.squeeze(0)?.transpose(0, 1);
                let (o, lse) =
                    row(&q)?.varlen_attention_with_lse(&row(&k)?, &row(&v)?, &q_starts?, &k_starts?, &attention)?;
                (o.transpose(0, 1)?.unsqueeze(0)?, lse.unsqueeze(0)?)
            }
            _ => q.scaled_dot_product_attention_with_lse(&k, &v, &attention)?,
        };
        let mut roots = vec![(&o, to(&operands[3], dtype)?)];
        if self.has_dlse {
            roots.push((&lse, to(&operands[4], lse.dtype())?));
        }
        let found = grad_from(&roots, &[&q, &k, &v], &BackwardOptions::default())?;
        Ok([o.detach(), lse.detach()].into_iter().chain(found).collect())
    }
}

/// A result is as near as roundings of its terms to the dtype leave it: the error's root mean square is within two roundings of the
/// result's, and no error exceeds eight roundings of the largest result.
fn is_near(problem: &Problem, dtype: DType, unit: fn(DType) -> f64, device: &Device) -> Result<Outcome> {
    let operands = problem.operands(dtype)?;
    let (near, exact) = (problem.run(&operands, dtype, device)?, problem.run(&operands, DType::F64, &cpu())?);
    for (name, (near, exact)) in ["o", "lse", "dq", "dk", "dv"].iter().zip(near.iter().zip(&exact)) {
        let (near, exact, unit) = (near.to_f64_vec()?, exact.to_f64_vec()?, unit(near.dtype()));
        // Logarithms of -infinity are equal.
        let error: Vec<f64> = near.iter().zip(&exact).map(|(a, b)| if a == b { 0.0 } else { a - b }).collect();
        let exact: Vec<f64> = exact.into_iter().filter(|x| x.is_finite()).collect();
        let found = [mean(&error) / mean(&exact), most(&error) / most(&exact)].map(|e| e / unit);
        if !(found[0] <= 2.0 && found[1] <= 8.0) {
            return Ok(Err(format!("{name} is off by {found:?} roundings, in the mean and at most")));
        }
    }
    Ok(Ok(()))
}

/// False where products of f32 are computed in f32 in any case.
fn may_have_tf32(device: &Device) -> bool {
    let found = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    let is_nvidia = |info: &DeviceInfo| info.name == device.name() && info.description.contains("NVIDIA");
    device.name().starts_with("cuda") || found.into_iter().any(|info| is_nvidia(&info))
}

/// The same in f32, if products may be rounded to TF32, which has as many significant bits as f16.
fn is_near_in_tf32(problem: &Problem, device: &Device) -> Result<Outcome> {
    let device = &harness::private(device);
    device.set_matmul_precision(Precision::Tf32);
    is_near(problem, DType::F32, |_| unit(DType::F16), device)
}

/// One kernel computes the result. One computes sums of queries, one the gradient of q, and one those of k and v.
fn launches(device: &Device) -> Result<Outcome> {
    let device = &harness::private(device);
    let count = || device.backend().launch_count();
    if count().is_none() {
        return Ok(Ok(()));
    }
    let leaf = |heads: usize| Tensor::zeros((1, heads, 40, 24), DType::F32, device)?.require_grad();
    let (q, k, v, dy) = (leaf(4)?, leaf(2)?, leaf(2)?, leaf(4)?.detach());
    let start = count().unwrap_or_default();
    let y = q.scaled_dot_product_attention(&k, &v, &Attention { causal: Causal::TopLeft, ..Attention::default() })?;
    let middle = count().unwrap_or_default();
    grad_from(&[(&y, dy)], &[&q, &k, &v], &BackwardOptions::default())?;
    let found = [middle - start, count().unwrap_or_default() - middle];
    Ok(if found == [1, 3] { Ok(()) } else { Err(format!("{found:?} launches, expected [1, 3]")) })
}

/// A rounding of 1. Sums and functions in f32 have more than one.
/// Queries, keys and values that are slices of one tensor `[B, T, 3, H, D]` have the result and the gradients of separate ones.
fn slices_of_one_tensor(dtype: DType, device: &Device) -> Result<Outcome> {
    let (rng, [b, t, h, d]) = (Rng::new(7), [2, 150, 3, 64]);
    let normal = |dims: &[usize]| Tensor::randn(dims, 0.0, 1.0, DType::F32, device, &rng)?.cast(dtype);
    let (whole, dy) = (normal(&[b, t, 3, h, d])?.require_grad()?, normal(&[b, t, h * d])?);
    let attended = |parts: &[Tensor]| -> Result<Tensor> {
        let [q, k, v] = [0, 1, 2].map(|i| parts[i].transpose(1, 2));
        let attention = Attention { causal: Causal::BottomRight, ..Attention::default() };
        q?.scaled_dot_product_attention(&k?, &v?, &attention)?.transpose(1, 2)?.reshape((b, t, h * d))
    };
    let parts: Vec<Tensor> =
        whole.detach().unbind(2)?.iter().map(|part| part.copy()?.require_grad()).collect::<Result<_>>()?;
    let (of_slices, of_parts) = (attended(&whole.unbind(2)?)?, attended(&parts)?);
    let gradient = grad_from(&[(&of_slices, dy.clone())], &[&whole], &BackwardOptions::default())?;
    let apart: Vec<&Tensor> = parts.iter().collect();
    let apart = grad_from(&[(&of_parts, dy)], &apart, &BackwardOptions::default())?;
    let apart = Tensor::stack(&apart.iter().collect::<Vec<_>>(), 2)?;
    let same = |a: &Tensor, b: &Tensor| Ok(a.to_f64_vec()? == b.to_f64_vec()?);
    Ok(match (same(&of_slices, &of_parts)?, same(&gradient[0], &apart)?) {
        (true, true) => Ok(()),
        found => Err(format!("the result and the gradients are the same: {found:?}")),
    })
}

fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 8.0 * 2f64.powi(-24),
    }
}

fn mean(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
}

fn most(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
}
