//! Threads: models trained at once, tensors that cross, and what is a thread's own.

use isograd::nn::{AdamW, Optimizer};
use isograd::parallel::threads;
use isograd::tape::{self, is_grad_enabled};
use isograd::{Context, DType, Result, Rng, Tensor, autocast, enable_grad, no_grad};
use isograd_tests::{cpu, leaf};
use std::sync::{Barrier, mpsc};
use std::thread;

/// Losses and parameters of a small model after some steps; large enough that kernels run on several threads themselves.
fn train(seed: u64) -> Result<Vec<Vec<f32>>> {
    let (device, rng) = (cpu(), Rng::new(seed));
    let normal = |shape: [usize; 2]| Tensor::randn(shape, 0.0, 0.1, DType::F32, &device, &rng);
    let (x, target) = (normal([300, 64])?, normal([300, 8])?);
    let parameters = [normal([128, 64])?.require_grad()?, normal([8, 128])?.require_grad()?];
    let mut optimizer = AdamW::from_parameters(parameters.to_vec()).lr(0.01);
    let mut results = Vec::new();
    for _ in 0..15 {
        let y = x.linear(&parameters[0], None)?.gelu(Default::default())?.dropout(0.2, &rng)?;
        let loss = y.linear(&parameters[1], None)?.sub(&target)?.square()?.mean(..)?;
        loss.backward()?;
        optimizer.step()?;
        parameters.iter().try_for_each(|p| p.set_grad(None))?;
        results.push(loss.to_vec()?);
    }
    results.extend(parameters.iter().map(|p| p.to_vec()).collect::<Result<Vec<_>>>()?);
    Ok(results)
}

#[test]
fn models_trained_at_once_have_the_bits_of_models_trained_in_turn() -> Result<()> {
    let in_turn = [train(1)?, train(2)?];
    assert_ne!(in_turn[0], in_turn[1]);
    for _ in 0..3 {
        let start = Barrier::new(2);
        let at_once = thread::scope(|scope| {
            let started = |seed| {
                start.wait();
                train(seed)
            };
            [1, 2].map(|seed| scope.spawn(move || started(seed))).map(|t| t.join().expect("no panic"))
        });
        assert_eq!(in_turn, at_once.map(Result::unwrap));
    }
    Ok(())
}

/// One thread makes the tape, another goes back through it, and the leaf of a third has the gradient.
#[test]
fn tensors_and_tapes_cross_threads() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0], 3)?;
    let (sender, receiver) = mpsc::channel::<Tensor>();
    let source = x.clone();
    let forward = thread::spawn(move || sender.send(source.exp().unwrap().sum(..).unwrap()).unwrap());
    let backward = thread::spawn(move || receiver.recv().unwrap().backward());
    forward.join().unwrap();
    backward.join().unwrap()?;
    assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [1f64.exp(), 2f64.exp(), 3f64.exp()]);
    Ok(())
}

/// Two passes add to one leaf at once.
#[test]
fn gradients_from_two_threads_add_up() -> Result<()> {
    for _ in 0..50 {
        let x = leaf(&[1.0; 64], 64)?;
        let start = Barrier::new(2);
        thread::scope(|scope| {
            let pass = |factor: f64| {
                start.wait();
                (0..10).try_for_each(|_| x.mul_scalar(factor)?.sum(..)?.backward())
            };
            let threads = [2.0, 3.0].map(|factor| scope.spawn(move || pass(factor)));
            threads.map(|t| t.join().expect("no panic").expect("a gradient"))
        });
        assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [50.0; 64]);
    }
    Ok(())
}

#[test]
fn no_grad_is_one_threads_own() -> Result<()> {
    let x = leaf(&[2.0], 1)?;
    no_grad(|| {
        let square = || x.square().map(|y| (is_grad_enabled(), y.requires_grad()));
        assert_eq!(square()?, (false, false));
        thread::scope(|scope| {
            assert_eq!(scope.spawn(square).join().unwrap()?, (true, true));
            Ok(())
        })?;
        assert_eq!(enable_grad(square)?, (true, true));
        assert_eq!(square()?, (false, false));
        Ok(())
    })?;
    assert!(is_grad_enabled());
    Ok(())
}

#[test]
fn a_context_is_handed_on_to_a_thread() -> Result<()> {
    let (x, w) = (leaf(&[1.0], (1, 1))?.cast(DType::F32)?, leaf(&[3.0], (1, 1))?.cast(DType::F32)?);
    let seen = || -> Result<(bool, bool, DType)> {
        let infinite = x.sub(&x)?.log();
        Ok((is_grad_enabled(), infinite.is_err(), x.matmul(&w)?.dtype()))
    };
    let on_thread = |f: &(dyn Fn() -> Result<(bool, bool, DType)> + Sync)| {
        thread::scope(|scope| scope.spawn(f).join().expect("no panic"))
    };
    let plain = (true, false, DType::F32);
    let within = || -> Result<()> {
        let context = Context::current();
        assert_eq!(on_thread(&seen)?, plain);
        assert_eq!(on_thread(&|| context.enter(seen))?, (false, true, DType::BF16));
        // The thread has its own context again, and so has this one.
        let after = on_thread(&|| {
            context.enter(seen)?;
            seen()
        });
        assert_eq!((after?, seen()?), (plain, (false, true, DType::BF16)));
        Ok(())
    };
    no_grad(|| tape::detect_anomaly(|| autocast(DType::BF16, within)))?;
    assert_eq!(seen()?, plain);
    // The context of a thread without scopes ends those of another.
    let context = Context::current();
    no_grad(|| assert!(context.enter(is_grad_enabled) && !is_grad_enabled()));
    Ok(())
}

#[test]
fn ranks_have_the_context_of_their_caller() -> Result<()> {
    assert_eq!(no_grad(|| threads(2, |_| Ok(is_grad_enabled())))?, [false; 2]);
    assert_eq!(threads(2, |_| Ok(is_grad_enabled()))?, [true; 2]);
    Ok(())
}

/// A panic within `no_grad` does not leave its thread without a tape.
#[test]
fn no_grad_ends_with_a_panic() -> Result<()> {
    let panicked = std::panic::catch_unwind(|| no_grad(|| panic!("as it should")));
    assert!(panicked.is_err() && is_grad_enabled());
    Ok(())
}
