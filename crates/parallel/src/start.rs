//! The start of a rank: what a launcher says in the environment.

use crate::alone::Alone;
use crate::mpi::Processes;
use crate::server::Hosted;
use crate::store::{Secret, Store};
use crate::transport::Transport;
use crate::{Group, Options};
use isograd_core::{Device, Error, Result};
use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program that has started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `torchrun`: ranks exchange messages through its store.
    Torchrun,
    /// `mpirun`, `mpiexec`, or `srun` with an MPI: ranks exchange messages by MPI.
    Mpi,
    /// `srun` without an MPI: ranks exchange messages through a store that rank 0 serves.
    Srun,
    /// None: the process is alone.
    None,
}

/// All processes of a run, of which this is one. It lives until the end of the program: when it is dropped, the other ranks are told
/// that this one is gone, and MPI ends. It waits for the others for the time of [`Options::timeout`] at most.
pub struct World {
    group: Group,
    launcher: Launcher,
    local_rank: usize,
    transport: Arc<dyn Transport>,
    processes: Option<Arc<Processes>>,
    timeout: Duration,
}

/// The time after a failure for which a rank waits for the others to leave.
const FAREWELL: Duration = Duration::from_secs(30);
/// The time after which a rank that still waits says why.
const SOON: Duration = Duration::from_secs(1);

/// The first of these variables that is a number.
fn number(names: &[&str]) -> Option<usize> {
    names.iter().find_map(|name| env::var(name).ok()?.trim().parse().ok())
}

/// The launcher of this process, by the environment.
fn launcher() -> Launcher {
    let has = |name| env::var_os(name).is_some();
    if number(&["WORLD_SIZE"]).is_some() && has("RANK") && has("MASTER_ADDR") && has("MASTER_PORT") {
        return Launcher::Torchrun;
    }
    // SLURM sets the number of tasks for a script too, but that of a step only for `srun`.
    let is_step = number(&["SLURM_PROCID"]).is_some() && number(&STEP_TASKS).is_some();
    let has_mpi = number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"]).is_some();
    match (has_mpi || (is_step && has("PMIX_RANK")), is_step) {
        (true, _) => Launcher::Mpi,
        (false, true) => Launcher::Srun,
        (false, false) => Launcher::None,
    }
}

/// SLURM's variables for the number of ranks of a step.
const STEP_TASKS: [&str; 1] = ["SLURM_STEP_NUM_TASKS"];

impl Options {
    /// The default, with `ISOGRAD_TIMEOUT` seconds if this is set. Errors: `Value` if it is no number above 0.
    pub fn from_environment() -> Result<Options> {
        let Ok(value) = env::var("ISOGRAD_TIMEOUT") else { return Ok(Options::default()) };
        match value.parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(Options { timeout: Duration::from_secs_f64(seconds) }),
            _ => Err(Error::value("start", format!("ISOGRAD_TIMEOUT is {value:?}, expected seconds above 0"))),
        }
    }
}

impl World {
    /// Joins the processes that a launcher has started, with the options of the environment. A process without a launcher is alone.
    ///
    /// `torchrun` says by `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` where its store is. `mpirun`, and `srun` with an MPI
    /// (`--mpi=pmix`), are known by `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE` or `PMIX_RANK`; MPI is then opened at run time. Without an MPI,
    /// `srun` is known by `SLURM_PROCID` and `SLURM_STEP_NUM_TASKS`, and rank 0 serves a store on the first host of
    /// `SLURM_STEP_NODELIST`, at a port that depends on the job, or at `MASTER_ADDR` and `MASTER_PORT`. It serves the ranks that know
    /// `ISOGRAD_SECRET`, without which there may be one host only. Errors: `Device` if there is no MPI; `Value` if it knows another number of
    /// ranks than the launcher, or for several hosts without a secret; `Io`.
    pub fn start() -> Result<World> {
        World::start_with(&Options::from_environment()?)
    }

    /// [`start`](World::start) with options.
    pub fn start_with(options: &Options) -> Result<World> {
        let launcher = launcher();
        let (transport, processes): (Arc<dyn Transport>, _) = match launcher {
            Launcher::None => (Arc::new(Alone), None),
            Launcher::Torchrun => (Arc::new(store(options.timeout)?), None),
            Launcher::Srun => (step(options.timeout)?, None),
            Launcher::Mpi => {
                let processes = Arc::new(processes(options.timeout)?);
                (processes.clone(), Some(processes))
            }
        };
        let group = Group::world(transport.clone(), options);
        let locals = ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"];
        let local_rank = match number(&locals) {
            Some(rank) => rank,
            None if group.size() == 1 => 0,
            None => group.node()?.rank(),
        };
        Ok(World { group, launcher, local_rank, transport, processes, timeout: options.timeout })
    }

    /// The group of all processes.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The launcher.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// The number of this process among those of its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The device of this process: the one of the name, such as `cuda:1`; for a kind of device, such as `cuda`, the one with the number
    /// of this process on its host; without a name, that of the best kind. Processes share devices if there are fewer. Errors:
    /// `Device`.
    pub fn device(&self, name: Option<&str>) -> Result<Device> {
        let best =
            name.map_or_else(|| Device::best().map(|best| best.name().to_string()), |name| Ok(name.to_string()))?;
        let kind = match (name, best.split_once(':')) {
            (Some(_), Some(_)) => return best.parse(),
            (_, Some((kind, _))) => kind,
            (_, None) => &best,
        };
        let found = Device::list().into_iter().find(|(listed, _)| *listed == kind);
        let devices = found.map_or(Ok(Vec::new()), |(_, devices)| devices)?;
        match devices.get(self.local_rank % devices.len().max(1)) {
            Some(device) => device.name.parse(),
            None => best.parse(),
        }
    }
}

impl Drop for World {
    /// Waits for the other ranks where these need this one, or all end together: for the timeout, or after a failure for 30 seconds at most.
    /// A rank that does not come until then hangs: MPI ends the whole job.
    fn drop(&mut self) {
        let (failure, start) = (self.group.failure(), Instant::now());
        let is_failed = failure.is_some() || std::thread::panicking();
        let patience = if is_failed { self.timeout.min(FAREWELL) } else { self.timeout };
        self.transport.leave();
        let mut missing = self.transport.wait_for_others(start + patience.min(SOON));
        if !missing.is_empty() {
            // The program shows its error after this wait, if at all.
            if let Some(why) = failure {
                eprintln!("isograd: rank {} leaves after an error: {why}", self.transport.rank());
            }
            missing = self.transport.wait_for_others(start + patience);
        }
        let Some(processes) = &self.processes else { return };
        if !missing.is_empty() {
            eprintln!("isograd: ranks {missing:?} did not leave within {patience:?}: the job is ended");
        }
        match missing.is_empty() && !std::thread::panicking() {
            true => processes.finish(),
            false => processes.abort(),
        }
    }
}

fn store(timeout: Duration) -> Result<Store> {
    let variable = |name: &str| {
        env::var(name).map_err(|_| Error::value("start", format!("{name} is not set, which torchrun does")))
    };
    let (rank, size) = (number(&["RANK"]), number(&["WORLD_SIZE"]));
    let (Some(rank), Some(size)) = (rank, size) else {
        return Err(Error::value("start", "RANK or WORLD_SIZE is no number"));
    };
    if env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value != "True") {
        let message = "torchrun has no store for its workers; unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE, or use mpirun";
        return Err(Error::unsupported("start", message));
    }
    let run = env::var("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let restarts = env::var("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let address = format!("{}:{}", variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
    Store::connect(&address, [rank, size], format!("isograd/{run}/{restarts}"), &Secret::None, timeout)
}

/// The transport of a rank of `srun`.
fn step(timeout: Duration) -> Result<Arc<dyn Transport>> {
    let (Some(rank), Some(size)) = (number(&["SLURM_PROCID"]), number(&STEP_TASKS)) else {
        return Err(Error::value("start", "SLURM_PROCID or SLURM_STEP_NUM_TASKS is no number"));
    };
    let job = number(&["SLURM_JOB_ID", "SLURM_JOBID"]).unwrap_or(0);
    let own = number(&["SLURM_STEP_ID", "SLURM_STEPID"]).unwrap_or(0);
    let port = number(&["MASTER_PORT"]).unwrap_or(PORTS.0 + (job * 7 + own) % PORTS.1);
    let port =
        u16::try_from(port).map_err(|_| Error::value("start", format!("MASTER_PORT is {port}, expected a port")))?;
    let prefix = format!("isograd/{job}/{own}");
    let nodes = env::var("SLURM_STEP_NODELIST").or_else(|_| env::var("SLURM_NODELIST")).ok();
    let is_one_host = nodes.as_ref().is_some_and(|nodes| !nodes.contains([',', '[']));
    let secret = secret(is_one_host, &prefix)?;
    let here = is_one_host.then(|| Ipv4Addr::LOCALHOST.to_string());
    let host = env::var("MASTER_ADDR").ok().or(here).or_else(|| first_host(&nodes?));
    if rank == 0 {
        let at = SocketAddr::new(interface(host.as_deref(), is_one_host), port);
        return Ok(Arc::new(Hosted::start(at, size, prefix, &secret, timeout)?));
    }
    let host = host.or_else(|| env::var("SLURM_LAUNCH_NODE_IPADDR").ok()).ok_or_else(|| {
        Error::value(
            "start",
            "SLURM_STEP_NODELIST is not set, which srun does; MASTER_ADDR may name the host of rank 0",
        )
    })?;
    Ok(Arc::new(Store::connect(&format!("{host}:{port}"), [rank, size], prefix, &secret, timeout)?))
}

/// The text by which ranks of a step know each other: that of the environment, or else, on one host, one in a file of the user's. Errors:
/// `Value` for several hosts without one in the environment.
fn secret(is_one_host: bool, prefix: &str) -> Result<Secret> {
    match env::var("ISOGRAD_SECRET") {
        Ok(text) if (1..=SECRET).contains(&text.len()) => Ok(Secret::Text(text)),
        Ok(text) => {
            let message = format!("ISOGRAD_SECRET has {} bytes, expected 1 to {SECRET}", text.len());
            Err(Error::value("start", message))
        }
        Err(_) if is_one_host => {
            let name = format!("{}.secret", prefix.replace('/', "-"));
            Ok(Secret::File(env::temp_dir().join(name)))
        }
        Err(_) => Err(Error::value(
            "start",
            "rank 0 serves a store to other hosts, for which ISOGRAD_SECRET must be a text that only this job knows; before srun: \
             export ISOGRAD_SECRET=$(openssl rand -hex 16)",
        )),
    }
}

/// Bytes of the longest secret.
const SECRET: usize = 1024;

/// The address at which rank 0 serves a store: that of the host's name, if this host has it; else all of them.
fn interface(host: Option<&str>, is_one_host: bool) -> IpAddr {
    let addresses = host.and_then(|host| (host, 0).to_socket_addrs().ok()).into_iter().flatten();
    // Some hosts give their own name an address that others cannot reach.
    let mut own = addresses.map(|address| address.ip()).filter(|ip| is_one_host || !ip.is_loopback());
    own.find(|ip| TcpListener::bind((*ip, 0)).is_ok()).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// The first of the ports of stores, and their number.
const PORTS: (usize, usize) = (20_000, 10_000);

/// The first host of a list such as `gpu[07-09,12],login`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else { return Some(name.to_string()).filter(|name| !name.is_empty()) };
    let (ranges, rest) = ranges.split_once(']')?;
    let first = ranges.split([',', '-']).next()?;
    // A name may go on after its number.
    let rest = rest.split(',').next().unwrap_or_default();
    Some(format!("{name}{first}{rest}"))
}

fn processes(timeout: Duration) -> Result<Processes> {
    let processes = Processes::start(timeout)?;
    let expected = number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]);
    match expected {
        Some(expected) if expected != processes.size() => {
            let message = format!("the launcher has started {expected} ranks, but MPI knows {}", processes.size());
            Err(Error::value("start", format!("{message}; is it another MPI's launcher? srun needs --mpi=pmix")))
        }
        _ => Ok(processes),
    }
}

#[cfg(test)]
mod tests {
    use super::{first_host, interface};
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn the_first_of_hosts() {
        let of = |list| first_host(list).unwrap_or_default();
        assert_eq!(of("gpu[07-09,12],login"), "gpu07");
        assert_eq!(of("gpu3"), "gpu3");
        assert_eq!(of("a,b[1-2]"), "a");
        assert_eq!(of("rack[2,4]-gpu"), "rack2-gpu");
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn a_store_is_served_at_the_address_of_the_host() {
        let (here, all) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::UNSPECIFIED));
        assert_eq!(interface(Some("127.0.0.1"), true), here);
        // Ranks of other hosts would not reach it there.
        assert_eq!(interface(Some("127.0.0.1"), false), all);
        // An address for documents, RFC 5737, which no host has.
        assert_eq!(interface(Some("192.0.2.1"), false), all);
        assert_eq!(interface(None, true), all);
    }
}
