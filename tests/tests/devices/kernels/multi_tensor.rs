//! Pointwise functions and totals over many tensors: one launch has the bits of a launch for each, and nothing around is written.

use isograd::ops::Total;
use isograd::ops::{Update, total, unscale_, update_, update_each_, update_each_norms_};
use isograd::pointwise::Pointwise;
use isograd::{DType, Device, Kind, Result, Rng, Tensor};

const SIZES: [usize; 12] = [0, 1, 3, 4, 5, 7, 8, 1000, 1024, 4097, 16385, 100_003];

/// Parameters, means, means of squares and gradients of an Adam step.
struct Sets(Vec<[Tensor; 4]>);

impl Sets {
    /// Tensors of these sizes, each `shift` elements into a buffer that ends some elements later.
    fn new(device: &Device, sizes: &[usize], dtypes: [DType; 4], shift: usize) -> Result<Sets> {
        let rng = Rng::new(sizes.len() as u64);
        let one = |dtype, n: usize| {
            Tensor::rand([n + shift + 3], 0.0, 1.0, DType::F32, device, &rng)?.cast(dtype)?.narrow(0, shift, n)
        };
        let set = |&n: &usize| -> Result<_> {
            let [p, m, v, g] = dtypes;
            Ok([one(p, n)?, one(m, n)?, one(v, n)?, one(g, n)?])
        };
        Ok(Sets(sizes.iter().map(set).collect::<Result<_>>()?))
    }

    /// Tensors of the same values, each with a buffer of its own.
    fn copy(&self) -> Result<Sets> {
        let set = |[p, m, v, g]: &[Tensor; 4]| -> Result<_> { Ok([p.copy()?, m.copy()?, v.copy()?, g.copy()?]) };
        Ok(Sets(self.0.iter().map(set).collect::<Result<_>>()?))
    }

    fn bytes(&self) -> Result<Vec<Vec<u8>>> {
        self.0.iter().flatten().map(Tensor::to_bytes).collect()
    }

    fn shared(device: &Device) -> Result<Vec<Tensor>> {
        [0.5f32, 1.5, 0.9, 0.25, 0.0].iter().map(|&v| Tensor::scalar(v, device)).collect()
    }

    fn step_each(&self, device: &Device) -> Result<()> {
        let shared = Self::shared(device)?;
        let updates: Vec<Update<'_>> = self.0.iter().map(update).collect();
        let shared: Vec<&Tensor> = shared.iter().collect();
        update_each_(Pointwise::AdamStep, &updates, &shared, &ATTRIBUTES)
    }

    fn step_in_turn(&self, device: &Device) -> Result<()> {
        let shared = Self::shared(device)?;
        self.0.iter().try_for_each(|[p, m, v, g]| {
            let inputs: Vec<&Tensor> = std::iter::once(g).chain(&shared).collect();
            update_(Pointwise::AdamStep, &[p, m, v], &inputs, &ATTRIBUTES)
        })
    }
}

const ATTRIBUTES: [f64; 6] = [0.5, 0.1, 0.1, 0.999, 0.001, 1e-8];

fn update([p, m, v, g]: &[Tensor; 4]) -> Update<'_> {
    Update { targets: vec![p, m, v], inputs: vec![g], numbers: Vec::new() }
}

#[track_caller]
fn check(device: &Device, sets: &Sets) -> Result<()> {
    let expected = sets.copy()?;
    expected.step_in_turn(device)?;
    sets.step_each(device)?;
    for (set, alone) in sets.0.iter().zip(&expected.0) {
        for (name, (t, e)) in ["p", "m", "v", "g"].iter().zip(set.iter().zip(alone)) {
            let same = t.to_bytes()? == e.to_bytes()?;
            assert!(same, "{name} {} {}:\n{:?}\n{:?}", t.shape(), t.dtype(), t.to_f64_vec()?, e.to_f64_vec()?);
        }
    }
    Ok(())
}

use DType::{BF16, F16, F32, F64};

pub fn one_launch_has_the_bits_of_many(device: &Device) -> Result<()> {
    for dtypes in [[F32; 4], [F64; 4], [F16, F32, F32, F16], [BF16, F32, F32, F32], [F16; 4]] {
        for shift in [0, 1, 4] {
            check(device, &Sets::new(device, &SIZES, dtypes, shift)?)?;
        }
    }
    check(device, &Sets::new(device, &[], [F32; 4], 0)?)?;
    check(device, &Sets::new(device, &[0], [F32; 4], 0)?)
}

pub fn three_hundred_tensors_of_several_dtypes(device: &Device) -> Result<()> {
    let sizes: Vec<usize> = (0..100).map(|i| (i * 37) % 1500).collect();
    let mut sets = Sets::new(device, &sizes, [F32; 4], 0)?;
    sets.0.extend(Sets::new(device, &sizes, [F16, F32, F32, F16], 0)?.0);
    sets.0.extend(Sets::new(device, &sizes, [F64; 4], 1)?.0);
    // Steps follow each other, so that a table is used twice and another between.
    for _ in 0..3 {
        check(device, &sets)?;
    }
    Ok(())
}

pub fn nothing_around_a_view_is_written(device: &Device) -> Result<()> {
    let whole = Tensor::zeros([4, 5000], F32, device)?;
    let parts: Vec<Tensor> = (0..4).map(|i| whole.select(0, i)?.narrow(0, 1, 4997)).collect::<Result<_>>()?;
    let limit = Tensor::full((), 3.0, F32, device)?;
    whole.fill_(1.0)?;
    let updates: Vec<Update<'_>> =
        parts.iter().map(|t| Update { targets: vec![t], inputs: Vec::new(), numbers: Vec::new() }).collect();
    update_each_(Pointwise::ScaleInPlace, &updates, &[&limit], &[])?;
    let values = whole.to_vec::<f32>()?;
    let expected = |i: usize| if (1..4998).contains(&(i % 5000)) { 3.0 } else { 1.0 };
    assert!(values.iter().enumerate().all(|(i, &v)| v == expected(i)));
    Ok(())
}

pub fn sets_that_overlap_are_updated_in_turn(device: &Device) -> Result<()> {
    let whole = Tensor::full(6, 1.0, F32, device)?;
    let (a, b) = (whole.narrow(0, 0, 4)?, whole.narrow(0, 2, 4)?);
    let two = Tensor::full((), 2.0, F32, device)?;
    let updates = [&a, &b].map(|t| Update { targets: vec![t], inputs: Vec::new(), numbers: Vec::new() });
    update_each_(Pointwise::ScaleInPlace, &updates, &[&two], &[])?;
    assert_eq!(whole.to_vec::<f32>()?, [2.0, 2.0, 4.0, 4.0, 2.0, 2.0]);
    // The second set reads what the first has changed.
    let (y, x) = (Tensor::zeros(4, F32, device)?, Tensor::full(4, 5.0, F32, device)?);
    let z = Tensor::zeros(4, F32, device)?;
    let set = |y, x| Update { targets: vec![y], inputs: vec![x], numbers: Vec::new() };
    update_each_(Pointwise::Accumulate, &[set(&y, &x), set(&z, &y)], &[], &[])?;
    assert_eq!(z.to_vec::<f32>()?, [5.0; 4]);
    Ok(())
}

pub fn one_bad_set_changes_none(device: &Device) -> Result<()> {
    let full = |n: usize| Tensor::full(n, 1.0, F32, device);
    let (a, b, c, two) = (full(3)?, full(4)?, full(5)?, Tensor::full((), 2.0, F32, device)?);
    let set = |y, x| Update { targets: vec![y], inputs: vec![x], numbers: Vec::new() };
    let run = |sets: &[Update<'_>], shared: &[&Tensor]| {
        update_each_(Pointwise::Accumulate, sets, shared, &[]).expect_err("a bad set").kind()
    };
    let before = full(3)?;
    assert_eq!(run(&[set(&a, &before), set(&b, &c)], &[]), Kind::Shape);
    assert_eq!(run(&[set(&a, &before), set(&b, &b)], &[]), Kind::Value);
    assert_eq!(run(&[set(&a, &before)], &[&two]), Kind::Attr);
    let alone = Update { targets: vec![&a], inputs: Vec::new(), numbers: Vec::new() };
    assert_eq!(run(&[alone], &[&before]), Kind::Shape);
    let on_cpu = Tensor::full(4, 1.0, F32, &Device::cpu()?)?;
    assert_eq!(run(&[set(&a, &before), set(&b, &on_cpu)], &[]), Kind::Device);
    assert_eq!(a.to_vec::<f32>()?, [1.0; 3]);
    Ok(())
}

pub fn strided_and_broadcast_sets_run_beside_the_others(device: &Device) -> Result<()> {
    let rng = Rng::new(1);
    let normal = |shape: [usize; 2]| Tensor::randn(shape, 0.0, 1.0, F32, device, &rng);
    let (a, b, c) = (normal([30, 40])?, normal([30, 40])?, normal([30, 40])?);
    let (x, row) = (normal([40, 30])?, normal([1, 40])?);
    let expected = [a.add(&x.t()?)?, b.add(&row)?, c.add(&a)?].map(|t| t.to_vec::<f32>().unwrap());
    let before = a.copy()?;
    let transposed = x.t()?;
    let targets = [&a, &b, &c];
    let inputs = [&transposed, &row, &before];
    let updates: Vec<Update<'_>> = targets
        .into_iter()
        .zip(inputs)
        .map(|(y, x)| Update { targets: vec![y], inputs: vec![x], numbers: Vec::new() })
        .collect();
    update_each_(Pointwise::Accumulate, &updates, &[], &[])?;
    assert_eq!(targets.map(|t| t.to_vec::<f32>().unwrap()), expected);
    Ok(())
}

/// LAMB's moments, of `[p, m, v, g]`: the norms of p and of what it would step by.
fn moments(sets: &Sets, device: &Device) -> Result<Vec<Vec<Tensor>>> {
    let number = |v: f32| Tensor::scalar(v, device);
    let shared = [number(1.5)?, number(0.9)?, number(2.0)?, number(0.0)?];
    let updates = sets.0.iter().map(|[p, m, v, g]| Update { targets: vec![m, v], inputs: vec![p, g], numbers: vec![] });
    let shared: Vec<&Tensor> = shared.iter().collect();
    let attributes = [0.5, 0.1, 0.1, 0.999, 0.001, 1e-6];
    update_each_norms_(Pointwise::LambMoments, &updates.collect::<Vec<_>>(), &shared, &attributes)
}

pub fn norms_of_each_are_those_of_the_cpu(device: &Device) -> Result<()> {
    let cpu = Device::cpu()?;
    for (dtypes, shift) in
        [([F32; 4], 0), ([F32; 4], 1), ([F16, F32, F32, F16], 3), ([BF16, F32, F32, F32], 4), ([F64; 4], 1)]
    {
        let sets = Sets::new(device, &SIZES, dtypes, shift)?;
        let there = |t: &[Tensor; 4]| -> Result<[Tensor; 4]> {
            let [p, m, v, g] = t;
            Ok([p.to_device(&cpu)?, m.to_device(&cpu)?, v.to_device(&cpu)?, g.to_device(&cpu)?])
        };
        let other = Sets(sets.0.iter().map(there).collect::<Result<_>>()?);
        let (got, expected) = (moments(&sets, device)?, moments(&other, &cpu)?);
        for ((got, expected), n) in got.iter().zip(&expected).zip(SIZES) {
            assert_eq!(got.len(), 2);
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!((got.rank(), got.dtype()), (0, dtypes[0].acc()));
                let (got, expected) = (got.item::<f64>()?, expected.item::<f64>()?);
                assert!((got - expected).abs() <= 2e-6 * expected, "{dtypes:?} {n}: {got} {expected}");
            }
        }
        for (set, other) in sets.0.iter().zip(&other.0) {
            // Parameters and gradients stay as they are.
            assert_eq!((set[0].to_bytes()?, set[3].to_bytes()?), (other[0].to_bytes()?, other[3].to_bytes()?));
            for k in [1, 2] {
                let pairs = set[k].to_f64_vec()?.into_iter().zip(other[k].to_f64_vec()?);
                pairs.for_each(|(a, b)| assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} {b}"));
            }
        }
    }
    Ok(())
}

pub fn each_set_has_numbers_of_its_own(device: &Device) -> Result<()> {
    for shift in [0, 1] {
        let sets = Sets::new(device, &SIZES, [F32; 4], shift)?;
        let numbers = Tensor::rand([SIZES.len()], 1.0, 2.0, F32, device, &Rng::new(3))?;
        let numbers: Vec<Tensor> = (0..SIZES.len()).map(|i| numbers.select(0, i as isize)).collect::<Result<_>>()?;
        let copies = sets.copy()?;
        let each = sets.0.iter().zip(&numbers);
        let updates = each.map(|([p, ..], s)| Update { targets: vec![p], inputs: vec![], numbers: vec![s] });
        update_each_(Pointwise::ScaleInPlace, &updates.collect::<Vec<_>>(), &[], &[])?;
        for ([p, ..], s) in copies.0.iter().zip(&numbers) {
            update_(Pointwise::ScaleInPlace, &[p], &[s], &[])?;
        }
        assert_eq!(sets.bytes()?, copies.bytes()?);
    }
    Ok(())
}

pub fn totals_are_those_of_the_cpu(device: &Device) -> Result<()> {
    let cpu = Device::cpu()?;
    for dtype in [F64, F32, F16, BF16] {
        for shift in [0, 1, 4] {
            let sets = Sets::new(device, &SIZES, [dtype; 4], shift)?;
            let mut tensors: Vec<&Tensor> = sets.0.iter().flatten().collect();
            let other = Sets::new(device, &[33, 0], [F32, F64, F16, BF16], 1)?;
            tensors.extend(other.0.iter().flatten());
            let there: Vec<Tensor> = tensors.iter().map(|t| t.to_device(&cpu)?.cast(F64)).collect::<Result<_>>()?;
            for kind in [Total::Norm, Total::AbsSum, Total::AbsMax, Total::NotFinite] {
                let got = total(kind, &tensors)?;
                assert_eq!((got.rank(), got.dtype()), (0, F64));
                let expected = total(kind, &there.iter().collect::<Vec<_>>())?.item::<f64>()?;
                assert!((got.item::<f64>()? - expected).abs() <= 1e-6 * expected, "{kind:?} {dtype}: {got} {expected}");
                assert_eq!(got.to_bytes()?, total(kind, &tensors)?.to_bytes()?);
            }
        }
    }
    Ok(())
}

pub fn bad_numbers_are_found_wherever_they_are(device: &Device) -> Result<()> {
    for n in [1, 5, 1000, 100_003] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, n / 2, n - 1] {
                let mut values = vec![-1f32; n];
                values[at] = bad;
                let bad_one = Tensor::from_vec(values, n, device)?;
                let good = Tensor::full(7, -2.0, F32, device)?;
                let found = |kind| total(kind, &[&good, &bad_one])?.item::<f64>();
                assert_eq!(found(Total::NotFinite)?, 1.0);
                assert_eq!(found(Total::AbsMax)?.is_nan(), bad.is_nan());
                assert!(!found(Total::Norm)?.is_finite() && !found(Total::AbsSum)?.is_finite());
                assert_eq!(total(Total::NotFinite, &[&good])?.item::<f64>()?, 0.0);
            }
        }
    }
    Ok(())
}

/// In every dtype, of whole words and others, at addresses that are aligned and not.
pub fn gradients_are_unscaled_and_checked_at_once(device: &Device) -> Result<()> {
    let cpu = Device::cpu()?;
    for dtype in [F64, F32, F16, BF16] {
        for (shift, bad) in [(0, None), (1, Some(f64::INFINITY)), (4, Some(f64::NAN)), (3, None)] {
            let sets = Sets::new(device, &SIZES, [dtype; 4], shift)?;
            let other = Sets::new(device, &[33, 0], [F32, F64, F16, BF16], 1)?;
            let tensors: Vec<&Tensor> = sets.0.iter().chain(&other.0).flatten().collect();
            if let (Some(bad), Some(last)) = (bad, tensors.iter().rev().find(|t| t.numel() > 4)) {
                last.narrow(0, 3, 1)?.fill_(bad)?;
            }
            let there: Vec<Tensor> = tensors.iter().map(|t| t.to_device(&cpu)?.copy()).collect::<Result<_>>()?;
            let run = |tensors: &[&Tensor], device: &Device, found: f32| {
                let found = Tensor::scalar(found, device)?;
                unscale_(tensors, &Tensor::scalar(3f32, device)?, &found)?;
                found.item::<f64>()
            };
            let is_bad = if bad.is_some() { 1.0 } else { 0.0 };
            assert_eq!(run(&there.iter().collect::<Vec<_>>(), &cpu, 0.0)?, is_bad);
            assert_eq!(run(&tensors, device, 0.0)?, is_bad);
            for (got, expected) in tensors.iter().zip(&there) {
                let close =
                    |(g, e): (f64, f64)| g == e || (g - e).abs() <= 2e-7 * e.abs() || (g.is_nan() && e.is_nan());
                assert!(got.to_f64_vec()?.into_iter().zip(expected.to_f64_vec()?).all(close), "{dtype} {shift}");
            }
            // What was found before stays.
            assert_eq!(run(&tensors[..1], device, 1.0)?, 1.0);
        }
    }
    Ok(())
}

/// Two threads that make, use and evict tables of one device.
pub fn two_threads_update_at_once(device: &Device) -> Result<()> {
    let steps = |seed: usize| -> Result<Vec<Vec<Vec<u8>>>> {
        let sets: Vec<Sets> =
            (0..12).map(|i| Sets::new(device, &[seed + i, 1000 + i, 3000], [F32; 4], 0)).collect::<Result<_>>()?;
        (0..5).try_for_each(|_| sets.iter().try_for_each(|set| set.step_each(device)))?;
        sets.iter().map(Sets::bytes).collect()
    };
    let in_turn = [steps(1)?, steps(2)?];
    let at_once = std::thread::scope(|scope| {
        [1, 2].map(|seed| scope.spawn(move || steps(seed))).map(|t| t.join().expect("no panic"))
    });
    assert!(in_turn == at_once.map(Result::unwrap));
    Ok(())
}
