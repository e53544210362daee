//! Processes that `mpirun` starts: this program starts itself. Without `mpirun` its tests are ignored; `ISOGRAD_REQUIRE=mpi` makes that
//! a failure.

use crate::equality::{JOBS, STEPS, Way, distance, losses, losses_by};
use isograd_core::{DType, Device, Error, Kind, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_nn::{AdamW, Forward, Init, Linear, Optimizer, Sequential};
use isograd_parallel::{FullySharded, Group, Reduction, ShardOptions, World};
use libtest_mimic::{Failed, Trial};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that says what a process does as a rank.
pub const ROLE: &str = "ISOGRAD_TEST_ROLE";
/// Words before the error that a rank expects.
const FOUND: &str = "found: ";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for n in [2, 4] {
        trials.push(trial(format!("collectives::{n}"), n, "collectives", &[]));
        for job in JOBS.iter().filter(|job| n == 2 || job.name == "mlp") {
            trials.push(trial(format!("training::{}::{n}", job.name), n, job.name, &[]));
        }
        trials.push(trial(format!("fully_sharded::gpt::{n}"), n, "fully_sharded", &[]));
    }
    trials.push(trial("fully_sharded::memory".into(), 4, "memory", &[]));
    trials.push(Trial::test("srun::collectives::2", || step_of_slurm("collectives")));
    trials.push(Trial::test("srun::mlp::2", || step_of_slurm("mlp")));
    const SHAPES: [&str; 2] =
        ["rank 2 is at all_reduce (sum) of f32 [4] on cpu in step 3", "but rank 0 is at all_reduce (sum) of f32 [3]"];
    trials.push(trial("errors::shape".into(), 3, "shape", &SHAPES));
    trials.push(trial(
        "errors::leave".into(),
        3,
        "leave",
        &["barrier: Backend: rank 2 has left; rank 0 is at barrier in step 3"],
    ));
    trials.push(trial(
        "errors::hang".into(),
        3,
        "hang",
        &["rank 2 did not come within 3s; rank 0 is at barrier in step 3"],
    ));
    trials.push(of_mpi("errors::stopped".into(), stopped));
    // A rank is stopped or killed, and another one says which.
    const LATE: &str = "rank 1 did not come within 3s; rank 0 is at barrier in step 3";
    for (role, rank, expected) in
        [("stopped", 0, LATE), ("killed", 0, LATE), ("stopped_first", 1, "the store of the ranks does not answer")]
    {
        trials.push(Trial::test(format!("srun::{role}"), move || step_that_fails(role, rank, expected)));
    }
    trials
}

/// A trial that needs `mpirun`.
fn of_mpi(name: String, run: impl FnOnce() -> std::result::Result<(), Failed> + Send + 'static) -> Trial {
    let has = Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success());
    let is_required = std::env::var("ISOGRAD_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "mpi"));
    Trial::test(name, run).with_ignored_flag(!has && !is_required)
}

/// The command that runs a role on `n` processes.
fn mpirun(n: usize, role: &str) -> std::result::Result<Command, Failed> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new("mpirun");
    // A container often runs everything as root, and has fewer cores than ranks.
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &n.to_string()]).arg(program).env(ROLE, role);
    Ok(command)
}

/// Waits for a process for a minute at most, and returns what it has printed, to stdout and stderr, and if it succeeded.
fn within_a_minute(mut child: Child) -> std::result::Result<(String, bool), Failed> {
    let end = Instant::now() + Duration::from_secs(60);
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if Instant::now() > end {
            // A process that is stopped does not end by itself, nor does one that waits for it.
            child.kill().map_err(|e| e.to_string())?;
            return Err("it did not end within a minute".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((said, output.status.success()))
}

/// A rank that is stopped ends the job, after the others have said why.
fn stopped() -> std::result::Result<(), Failed> {
    let child = mpirun(3, "stopped")?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let (said, has_succeeded) = within_a_minute(child.map_err(|e| e.to_string())?)?;
    let found = ["rank 2 did not come within 3s", "isograd: ranks [2] did not leave within 3s: the job is ended"];
    match found.iter().find(|text| !said.contains(**text)) {
        _ if has_succeeded => Err("a job with a rank that is stopped has succeeded".into()),
        Some(text) => Err(format!("{text:?} is not in {said}").into()),
        None => Ok(()),
    }
}

/// A step of two ranks, one of which ends in time with an error that has this text. The other one is ended.
fn step_that_fails(role: &'static str, rank: usize, expected: &str) -> std::result::Result<(), Failed> {
    let mut ranks = step(role)?;
    let mut other = ranks.swap_remove(1 - rank);
    let ended = within_a_minute(ranks.swap_remove(0));
    // It may be gone.
    let _ = other.kill();
    let _ = other.wait();
    let (said, _) = ended?;
    if said.contains(expected) { Ok(()) } else { Err(format!("{expected:?} is not in {said}").into()) }
}

/// Runs a role on `n` processes, which must succeed and print `expected`.
fn trial(name: String, n: usize, role: &'static str, expected: &'static [&'static str]) -> Trial {
    let run = move || {
        let output = mpirun(n, role)?.output().map_err(|e| format!("mpirun does not start: {e}"))?;
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match expected.iter().find(|text| !out.contains(**text)) {
            _ if !output.status.success() => Err(Failed::from(format!("{}: {out}{err}", output.status))),
            Some(text) => Err(Failed::from(format!("{text:?} is not in {out}{err}"))),
            None => Ok(()),
        }
    };
    of_mpi(name, run)
}

/// Runs a role on two processes as `srun` starts them.
fn step_of_slurm(role: &str) -> std::result::Result<(), Failed> {
    for process in step(role)? {
        let output = process.wait_with_output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(Failed::from(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))));
        }
    }
    Ok(())
}

/// Two processes with the variables that `srun --mpi=none` sets.
fn step(role: &str) -> std::result::Result<Vec<Child>, Failed> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let started = (0..2).map(|rank| {
        let mut command = Command::new(&program);
        let slurm = [("PROCID", rank), ("LOCALID", rank), ("STEP_NUM_TASKS", 2), ("NTASKS", 2), ("STEP_ID", 0)];
        command.envs(slurm.map(|(name, value)| (format!("SLURM_{name}"), value.to_string())));
        let job = std::process::id() * 8 + JOBS_OF_SLURM.iter().position(|job| *job == role).unwrap_or(0) as u32;
        command.env("SLURM_JOB_ID", job.to_string()).env("SLURM_STEP_NODELIST", "localhost").env(ROLE, role);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    started.collect::<std::io::Result<Vec<_>>>().map_err(|e| e.to_string().into())
}

/// Roles whose steps have numbers of their own.
const JOBS_OF_SLURM: [&str; 5] = ["collectives", "mlp", "stopped", "killed", "stopped_first"];

/// Sends a signal to this process.
fn signal(name: &str) -> Result<()> {
    let sent = Command::new("kill").args([name, &std::process::id().to_string()]).status();
    sent.map(drop).map_err(|e| Error::io("kill".as_ref(), "starting", e))
}

pub fn rank(role: &str) -> Result<()> {
    let mut options = isograd_parallel::Options::default();
    if ["hang", "stopped", "killed", "stopped_first"].contains(&role) {
        options.timeout = Duration::from_secs(3);
    }
    let world = World::start_with(&options)?;
    let (group, device) = (world.group(), world.device(Some("cpu"))?);
    group.set_step(3);
    let is_last = group.rank() + 1 == group.size();
    match role {
        "collectives" => collectives(group, &device),
        "shape" => {
            let x = Tensor::zeros(if is_last { 4 } else { 3 }, DType::F32, &device)?;
            report(group.all_reduce(&x, Reduction::Sum))
        }
        "leave" if is_last => Ok(()),
        "hang" if is_last => {
            // Longer than the others wait for it in a collective, and not as long as until they leave without it.
            std::thread::sleep(Duration::from_secs(5));
            Ok(())
        }
        "stopped" if is_last => signal("-STOP"),
        "killed" if is_last => signal("-KILL"),
        // When all have come.
        "stopped_first" if group.is_first() => group.barrier().and_then(|()| signal("-STOP")),
        "stopped_first" => report(group.barrier().and_then(|()| group.barrier())),
        "leave" | "hang" | "stopped" | "killed" => report(group.barrier()),
        "fully_sharded" => train("gpt", Way::FullySharded, group, &device),
        "memory" => memory(group, &device),
        _ => train(role, Way::DataParallel, group, &device),
    }
}

fn report<T>(result: Result<T>) -> Result<()> {
    match result {
        Ok(_) => Err(Error::value("rank", "an error was expected")),
        Err(error) => {
            println!("{FOUND}{error}");
            Ok(())
        }
    }
}

fn check(is_right: bool, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::value("rank", format!("{what} is wrong"))) }
}

fn collectives(group: &Group, device: &Device) -> Result<()> {
    let (rank, n) = (group.rank(), group.size());
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        // The last takes the way of large tensors.
        for length in [0, 1, 5000] {
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
            check(is_all(&group.reduce_scatter(&gathered, Reduction::Sum)?, n * (rank + 1))?, "reduce_scatter")?;
            let turned = group.all_to_all(&x.unsqueeze(0)?.expand((n, length))?)?;
            check(turned.to_f64_vec()? == gathered.to_f64_vec()?, "all_to_all")?;
        }
    }
    // From each rank to the next, around a ring.
    group.send(&Tensor::full(3, rank as f64, DType::F32, device)?, (rank + 1) % n)?;
    let from = (rank + n - 1) % n;
    check(group.receive(from, 3, DType::F32, device)?.to_f64_vec()? == [from as f64; 3], "receive")?;
    let half = group.split(Some(rank % 2), rank)?.ok_or_else(|| Error::value("rank", "no half"))?;
    let sum = half.all_reduce(&Tensor::scalar(rank as f32, device)?, Reduction::Sum)?.item::<f64>()?;
    check(sum == (0..n).filter(|i| i % 2 == rank % 2).sum::<usize>() as f64, "the sum of a half")?;
    check(group.node()?.size() == n, "the node")?;
    group.barrier()
}

fn train(name: &str, way: Way, group: &Group, device: &Device) -> Result<()> {
    let job = JOBS.iter().find(|job| job.name == name);
    let job = job.ok_or_else(|| Error::value("rank", format!("there is no job {name}")))?;
    let found = losses_by(way, job, group, device, STEPS)?;
    check(
        group.gather_bytes("losses", format!("{found:?}").as_bytes())?.windows(2).all(|pair| pair[0] == pair[1]),
        "a rank",
    )?;
    if group.is_first() {
        let distance = distance(&found, &losses(job, &Group::alone(), device, STEPS)?);
        check(distance < 1e-6, &format!("a loss, by {distance:e},"))?;
    }
    group.barrier()
}

/// Layers of the model of [`memory`].
const LAYERS: usize = 12;
/// Bytes that one rank's training does not fit, but the part of one of four does.
const LIMIT: usize = 16 << 20;

fn layers(init: &Init) -> Result<Sequential> {
    (0..LAYERS).try_fold(Sequential::new(), |model, _| Ok(model.push(Linear::new(384, 384, init)?).push(Tensor::tanh)))
}

/// The losses of a few steps.
fn steps(
    model: &Sequential,
    synchronize: impl Fn() -> Result<()>,
    optimizer: &mut dyn Optimizer,
    device: &Device,
) -> Result<Vec<f64>> {
    let x = Tensor::randn((8, 384), 0.0, 1.0, DType::F32, device, &Rng::new(3))?;
    let mut losses = Vec::new();
    for _ in 0..5 {
        let loss = model.forward(&x)?.sub(&x)?.square()?.mean(..)?;
        loss.backward()?;
        synchronize()?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}

/// A model that does not fit on one rank trains on four, and a rank's peak is far below that of the whole model.
fn memory(group: &Group, device: &Device) -> Result<()> {
    let init = Init::new(device).seed(1);
    let alone = || {
        let model = layers(&Init::new(device).seed(1))?;
        let mut optimizer = AdamW::new(&model).lr(1e-3);
        steps(&model, || Ok(()), &mut optimizer, device)
    };
    device.synchronize()?;
    let expected = alone()?;
    let whole = device.memory().peak;
    device.limit_memory(Some(LIMIT))?;
    let error = alone().err().map(|error| error.kind());
    check(error == Some(Kind::OutOfMemory), &format!("the end of the whole model, {error:?},"))?;
    let before = device.memory().in_use;
    device.backend().reset_peak();
    let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &init, layers)?;
    let mut optimizer = sharded.optimizer(|parts| AdamW::new(parts).lr(1e-3))?;
    let found = steps(&model, || sharded.synchronize(), &mut optimizer, device)?;
    let own = device.memory().peak - before;
    let distance = distance(&found, &expected);
    check(distance < 1e-6, &format!("a loss, by {distance:e},"))?;
    check(own < whole * 2 / 5, &format!("the peak of a part, {own} bytes of {whole},"))?;
    println!("{own} bytes of {whole}");
    group.barrier()
}
