//! Memory of other libraries: that of a device's own tensors stands for it.

use isograd::{DType, Device, Foreign, Kind, Permission, Result, Rng, Tensor};
use isograd_tests::harness::{self, Outcome, expect};
use libtest_mimic::Trial;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |op, aspect, run| harness::check(device, op, aspect, run);
    vec![
        check("from_foreign", "shares_memory", shares),
        check("from_foreign", "the_owner_goes_last", owners),
        check("from_foreign", "captured_steps_keep_it", captured),
        check("from_foreign", "wrong_arguments", refuses),
        check("from_owner", "numbers_of_vectors_and_slices", owned),
        check("address", "results_of_captured_steps_move", moves),
    ]
}

/// The first numbers, in f32.
fn numbers(count: usize, device: &Device) -> Result<Tensor> {
    Tensor::arange(count, device)?.cast(DType::F32)
}

/// The memory of a tensor, whose owner counts when it is dropped.
#[allow(unsafe_code, reason = "the memory is that of a tensor, which the owner keeps")]
fn lent(t: &Tensor, drops: &Arc<AtomicUsize>) -> Result<Foreign> {
    struct Owner(Tensor, Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let owner = Owner(t.detach(), drops.clone());
    // SAFETY: the owner has a tensor of the memory.
    Ok(unsafe { Foreign::new(owner.0.address()?, t.numel() * t.dtype().size(), Box::new(owner)) })
}

/// Whether other libraries can read the device's memory. Without this, both directions say so.
fn is_shared(device: &Device) -> Result<bool> {
    if device.backend().space().is_some() {
        return Ok(true);
    }
    let x = numbers(4, device)?;
    assert_eq!(x.address().map_err(|e| e.kind()).err(), Some(Kind::Unsupported));
    Ok(false)
}

/// Views of another's memory, in any order of strides, see its changes and make their own.
fn shares(device: &Device) -> Result<Outcome> {
    if !is_shared(device)? {
        return Ok(Ok(()));
    }
    let (x, drops) = (numbers(12, device)?, Arc::default());
    let y = Tensor::from_foreign(lent(&x, &drops)?, 1, [3, 2], &[1, 4], DType::F32, device)?;
    if y.address()? != x.address()? + 4 {
        return Ok(Err("the elements are elsewhere".into()));
    }
    x.add_(&x.full_like(10.0)?)?;
    y.mul_(&y.full_like(2.0)?)?;
    let found = (y.to_vec::<f32>()?, x.to_vec::<f32>()?);
    let expected = (
        vec![22.0, 30.0, 24.0, 32.0, 26.0, 34.0],
        vec![10.0, 22.0, 24.0, 26.0, 14.0, 30.0, 32.0, 34.0, 18.0, 19.0, 20.0, 21.0],
    );
    Ok(expect(found == expected, format!("{found:?}, expected {expected:?}")))
}

/// The owner is dropped with the last tensor of the memory, and with the tape that keeps one.
fn owners(device: &Device) -> Result<Outcome> {
    if !is_shared(device)? {
        return Ok(Ok(()));
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let count = || drops.load(Ordering::SeqCst);
    let x = Tensor::randn([64], 0.0, 1.0, DType::F32, device, &Rng::new(1))?;
    let foreign = Tensor::from_foreign(lent(&x, &drops)?, 0, [64], &[1], DType::F32, device)?;
    let w = x.ones_like()?.require_grad()?;
    let y = foreign.narrow(0, 0, 32)?.mul(&w.narrow(0, 32, 32)?)?.sum(..)?;
    drop(foreign);
    let during = count();
    y.backward()?;
    drop(y);
    let (after, gradient) = (count(), w.grad().expect("a gradient").narrow(0, 32, 32)?.to_vec::<f32>()?);
    let is_right = gradient == x.narrow(0, 0, 32)?.to_vec::<f32>()?;
    Ok(expect((during, after, is_right) == (0, 1, true), format!("{during} and {after} drops, gradient: {is_right}")))
}

/// A recording reads the memory of its first runs, also when no tensor has it any more.
fn captured(device: &Device) -> Result<Outcome> {
    if !is_shared(device)? {
        return Ok(Ok(()));
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let x = numbers(8, device)?;
    let mut kept = Some(Tensor::from_foreign(lent(&x, &drops)?, 0, [8], &[1], DType::F32, device)?);
    let is_recorded = device.backend().space() != Some(isograd::Space::Host);
    let mut sums = Vec::new();
    {
        let held = std::cell::RefCell::new(kept.take());
        let mut step = device.capture(|add: Tensor| held.borrow().as_ref().unwrap_or(&add).add(&add)?.sum(..));
        for i in 0..4 {
            if i == 3 && is_recorded {
                held.take();
            }
            sums.push(step.run(Tensor::scalar(i as f32, device)?)?.item::<f32>()?);
        }
        assert_eq!(drops.load(Ordering::SeqCst), 0, "the recording does not keep the memory");
    }
    let found = (sums, drops.load(Ordering::SeqCst));
    Ok(expect(found == (vec![28.0, 36.0, 44.0, 52.0], 1), format!("sums and drops: {found:?}")))
}

fn refuses(device: &Device) -> Result<Outcome> {
    if !is_shared(device)? {
        return Ok(Ok(()));
    }
    let (x, drops) = (numbers(8, device)?, Arc::default());
    let of = |offset, shape: &[usize], strides: &[usize], dtype| {
        Tensor::from_foreign(lent(&x, &drops)?, offset, shape, strides, dtype, device)
    };
    let kinds = [
        of(1, &[8], &[1], DType::F32),
        of(0, &[8], &[1], DType::F64),
        of(0, &[2, 4], &[1], DType::F32),
        of(0, &[3, 2], &[usize::MAX, 1], DType::F32),
        Tensor::from_foreign(lent(&x.narrow(0, 1, 4)?, &drops)?, 0, [1], &[1], DType::F64, device),
    ]
    .map(|found| found.map_err(|e| e.kind()).err());
    let expected = [Kind::Shape, Kind::Shape, Kind::Shape, Kind::Shape, Kind::Value].map(Some);
    if kinds != expected {
        return Ok(Err(format!("{kinds:?}, expected {expected:?}")));
    }
    let read = lent(&x, &drops)?.with_permission(Permission::Read);
    let y = Tensor::from_foreign(read, 0, [8], &[1], DType::F32, device)?;
    let changed = y.add_(&y.ones_like()?).map_err(|e| e.kind()).err();
    Ok(expect(changed == Some(Kind::Value), format!("memory that nobody may write: {changed:?}")))
}

/// The CPU reads the numbers where they are; other devices copy them.
fn owned(device: &Device) -> Result<Outcome> {
    let (numbers, flags): (Arc<[f32]>, _) = ((0..6).map(|i| i as f32).collect(), vec![true, false, true]);
    let x = Tensor::from_owner(numbers.clone(), [2, 3], device)?;
    let y = Tensor::from_owner::<bool>(flags, 3, device)?;
    let is_there = device.backend().space() == Some(isograd::Space::Host);
    if is_there && x.address()? != numbers.as_ptr().addr() as u64 {
        return Ok(Err("the numbers were copied".into()));
    }
    let changed = x.fill_(1.0).map_err(|e| e.kind()).err();
    let wrong = Tensor::from_owner(numbers.clone(), [7], device).map_err(|e| e.kind()).err();
    let (sum, flags) = (numbers.iter().sum::<f32>(), y.cast(DType::U8)?.to_vec::<u8>()?);
    let found = (changed, wrong, flags, Tensor::from_owner(numbers, 6, device)?.sum(..)?.item::<f32>()?);
    let expected = (is_there.then_some(Kind::Value), Some(Kind::Shape), vec![1, 0, 1], sum);
    Ok(expect(found == expected, format!("{found:?}, expected {expected:?}")))
}

/// The result of a recording has another place after the next run, which another library would not learn.
fn moves(device: &Device) -> Result<Outcome> {
    if !is_shared(device)? || device.backend().space() == Some(isograd::Space::Host) {
        return Ok(Ok(()));
    }
    let mut step = device.capture(|x: Tensor| x.exp());
    let x = numbers(8, device)?;
    let runs = (0..3).map(|_| step.run(x.clone())).collect::<Result<Vec<_>>>()?;
    let found = runs[2].address().map_err(|e| e.kind()).err();
    let copied = runs[2].copy()?.address().is_ok();
    Ok(expect((found, copied) == (Some(Kind::Value), true), format!("{found:?}, a copy: {copied}")))
}
