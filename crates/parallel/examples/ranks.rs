//! Exchanges tensors among the processes of a launcher, and checks each result: `mpirun -n 4 ranks`, `torchrun --no-python
//! --nproc-per-node 2 ranks`. The argument `leave` or `hang` is a fault of the last rank, of which the others' errors are printed.

use isograd_core::{DType, Device, Error, Result, Tensor};
use isograd_cpu as _;
use isograd_parallel::{Group, Reduction, World};
use std::time::Duration;

fn check(is_right: bool, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::value("ranks", format!("{what} is wrong"))) }
}

fn exchange(group: &Group, device: &Device) -> Result<()> {
    let (rank, n) = (group.rank(), group.size());
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        for length in [1, 1000, 100_000] {
            let x = Tensor::full(length, (rank + 1) as f64, DType::F32, device)?.cast(dtype)?;
            let is_all = |y: &Tensor, value: usize| -> Result<bool> {
                Ok(y.numel() == length && y.to_f64_vec()?.iter().all(|v| *v == value as f64))
            };
            check(is_all(&group.all_reduce(&x, Reduction::Sum)?, n * (n + 1) / 2)?, "all_reduce")?;
            check(is_all(&group.all_reduce(&x, Reduction::Max)?, n)?, "the maximum")?;
            check(is_all(&group.broadcast(&x, n - 1)?, n)?, "broadcast")?;
            let gathered = group.all_gather(&x)?;
            for i in 0..n {
                check(is_all(&gathered.select(0, i as isize)?, i + 1)?, "all_gather")?;
            }
            let scattered = group.reduce_scatter(&gathered, Reduction::Sum)?;
            check(is_all(&scattered, n * (rank + 1))?, "reduce_scatter")?;
            let turned = group.all_to_all(&x.unsqueeze(0)?.expand((n, length))?)?;
            check(turned.to_f64_vec()? == gathered.to_f64_vec()?, "all_to_all")?;
        }
    }
    if n > 1 {
        // From each rank to the next, around a ring.
        let x = Tensor::full(3, rank as f64, DType::F32, device)?;
        group.send(&x, (rank + 1) % n)?;
        let from = (rank + n - 1) % n;
        check(group.receive(from, 3, DType::F32, device)?.to_f64_vec()? == [from as f64; 3], "receive")?;
        let half = group.split(Some(rank % 2), rank)?.ok_or_else(|| Error::value("ranks", "no half"))?;
        let sum = half.all_reduce(&Tensor::scalar(rank as f32, device)?, Reduction::Sum)?.item()?;
        check(sum == (0..n).filter(|i| i % 2 == rank % 2).sum::<usize>() as f64, "the sum of a half")?;
    }
    group.barrier()
}

fn main() -> Result<()> {
    let fault = std::env::args().nth(1);
    let world = World::start()?;
    let (group, device) = (world.group(), world.device(Some("cpu"))?);
    exchange(group, &device)?;
    group.set_step(7);
    let is_last = group.rank() + 1 == group.size();
    match fault.as_deref() {
        Some("leave") if is_last => return Ok(()),
        Some("hang") if is_last => std::thread::sleep(Duration::from_secs(8)),
        Some(_) => println!("{}", group.all_reduce(&Tensor::scalar(1.0f32, &device)?, Reduction::Sum).unwrap_err()),
        None => println!("rank {} of {} is right: {}", group.rank(), group.size(), group.transport()),
    }
    Ok(())
}
