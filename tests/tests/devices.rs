//! What holds on every device: the CPU's random bits, memory that comes back, and errors after which all goes on.

use isograd::nn::{AdamW, Fan, Forward, Gain, Init, Linear, Optimizer};
use isograd::{DType, Device, Kind, Result, Rng, Tensor};
use isograd_tests::compare::same_bits;
use isograd_tests::cpu;
use isograd_tests::harness::{self, private, text, trial};
use libtest_mimic::Trial;

fn main() {
    harness::main(|device| {
        let check = |op: &str, aspect: &str, run: fn(&Device) -> std::result::Result<(), String>| {
            let at = device.clone();
            trial(device, op, aspect, move || run(&at))
        };
        let trials: Vec<Trial> = vec![
            check("random", "the_bits_of_the_cpu", draws),
            check("init", "the_bits_of_the_cpu", initial_values),
            check("dropout", "the_bits_of_the_cpu", dropout),
            check("memory", "a_thousand_steps_hold_no_more_than_ten", |d| steps(d).map_err(text)?),
            check("memory", "too_much_is_refused_and_the_next_call_works", too_much),
            check("gather", "a_bad_index_is_an_error_and_the_next_call_works", bad_index),
        ];
        trials
    });
}

/// Compares what `make` makes on a device and on the CPU.
fn same_as_the_cpu(
    device: &Device,
    what: &str,
    make: &dyn Fn(&Device) -> Result<Tensor>,
) -> std::result::Result<(), String> {
    let (there, here) = (make(device).map_err(text)?, make(&cpu()).map_err(text)?);
    same_bits(what, &there, &here)
}

/// Sizes below, at and above a block of draws and a group of threads, and states in the middle of a block.
fn draws(device: &Device) -> std::result::Result<(), String> {
    for n in [1, 3, 4, 5, 255, 1024, 100_003] {
        let rng = || Rng::new(n as u64);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            same_as_the_cpu(device, "uniform", &|d| Tensor::rand(n, -2.0, 3.0, dtype, d, &rng()))?;
            same_as_the_cpu(device, "normal", &|d| Tensor::randn(n, 1.0, 2.0, dtype, d, &rng()))?;
        }
        same_as_the_cpu(device, "bernoulli", &|d| Tensor::bernoulli(n, 0.3, d, &rng()))?;
        same_as_the_cpu(device, "the second draw", &|d| {
            let rng = rng();
            Tensor::rand(n, 0.0, 1.0, DType::F32, d, &rng)?;
            Tensor::randn(n, 0.0, 1.0, DType::F32, d, &rng)
        })?;
    }
    Ok(())
}

fn initial_values(device: &Device) -> std::result::Result<(), String> {
    let shape = (37, 53);
    type Make = fn(&Init) -> Result<Tensor>;
    let all: [(&str, Make); 6] = [
        ("uniform", |i| i.uniform((37, 53), -0.1, 0.1)),
        ("normal", |i| i.normal((37, 53), 0.0, 0.02)),
        ("truncated_normal", |i| i.truncated_normal((37, 53), 0.0, 1.0, -2.0, 2.0)),
        ("kaiming_uniform", |i| i.kaiming_uniform((37, 53), Fan::In, Gain::Relu)),
        ("xavier_normal", |i| i.xavier_normal((37, 53), Gain::Linear)),
        ("linear", |i| Ok(Linear::new(53, 37, i)?.weight.detach())),
    ];
    for (name, make) in all {
        same_as_the_cpu(device, name, &|d| {
            let made = make(&Init::new(d).seed(3))?;
            assert_eq!(*made.shape(), shape.into());
            Ok(made.detach())
        })?;
    }
    Ok(())
}

fn dropout(device: &Device) -> std::result::Result<(), String> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        same_as_the_cpu(device, "dropout", &|d| Tensor::ones((7, 1001), dtype, d)?.dropout(0.3, &Rng::new(5)))?;
    }
    Ok(())
}

/// A step of a small classifier, of sizes that fit no tile.
fn steps(device: &Device) -> Result<std::result::Result<(), String>> {
    let device = private(device);
    let init = Init::new(&device).seed(1);
    let (first, second) = (Linear::new(13, 37, &init)?, Linear::new(37, 5, &init)?);
    let parameters = [&first, &second].into_iter().flat_map(|l| [Some(l.weight.clone()), l.bias.clone()]);
    let mut optimizer = AdamW::from_parameters(parameters.flatten().collect()).clip_norm(1.0);
    let x = init.normal((19, 13), 0.0, 1.0)?.detach();
    let classes = Tensor::from_vec((0..19).map(|i| i % 5).collect::<Vec<i64>>(), 19, &device)?;
    let mut step = || -> Result<()> {
        let hidden = first.forward(&x)?.relu()?.dropout(0.1, init.rng())?;
        second.forward(&hidden)?.cross_entropy(&classes)?.backward()?;
        optimizer.step()
    };
    (0..10).try_for_each(|_| step())?;
    device.synchronize()?;
    let held = device.memory();
    (0..990).try_for_each(|_| step())?;
    device.synchronize()?;
    let then = device.memory();
    Ok(if then == held { Ok(()) } else { Err(format!("{held:?} after 10 steps, {then:?} after 1000")) })
}

fn too_much(device: &Device) -> std::result::Result<(), String> {
    let error = Tensor::zeros(1usize << 46, DType::F32, device).err().ok_or("256 TiB were there")?;
    if error.kind() != Kind::OutOfMemory || !error.to_string().contains(&(1u64 << 48).to_string()) {
        return Err(format!("{error}"));
    }
    still_works(device)
}

fn bad_index(device: &Device) -> std::result::Result<(), String> {
    let x = Tensor::ones((4, 3), DType::F32, device).map_err(text)?;
    for value in [4i64, -1, i64::MAX] {
        let index = Tensor::from_vec(vec![0, value, 2], 3, device).map_err(text)?;
        // In checked mode the call fails, otherwise what waits for it.
        let read = x.index_select(0, &index).and_then(|y| y.to_vec::<f32>());
        let error = read.err().ok_or("a bad index was read")?;
        if error.kind() != Kind::Index || !error.to_string().contains(&format!("is {value}, expected 0..4")) {
            return Err(format!("{error}"));
        }
        still_works(device)?;
    }
    Ok(())
}

fn still_works(device: &Device) -> std::result::Result<(), String> {
    let sum = Tensor::ones(1000, DType::F32, device).and_then(|x| x.sum(..)).and_then(|x| x.item()).map_err(text)?;
    if sum == 1000.0 { Ok(()) } else { Err(format!("a sum is {sum}")) }
}
