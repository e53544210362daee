//! Collectives that devices run among themselves, without the host: what a backend offers, and how tensors reach it.

use crate::check::{check_same, describe};
use crate::page::Access;
use crate::{Device, Error, Operand, Result, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The function by which a collective combines the values of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks. Float dtypes.
    Mean,
    /// The largest value; NaN wins where ranks exchange values through host memory, and may lose on devices.
    Max,
}

/// An exchange of tensors among the ranks of a group. Shapes of results are those of the group's methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank gets the reduction of all.
    AllReduce(Reduction),
    /// Every rank gets the tensor of this rank.
    Broadcast(usize),
    /// Every rank gets the tensors of all, in the order of the ranks.
    AllGather,
    /// Rank i gets the reduction of all parts i.
    ReduceScatter(Reduction),
    /// Rank i gets the parts i of all, in the order of the ranks.
    AllToAll,
    /// This rank gets the tensor.
    Send(usize),
    /// The tensor comes from this rank.
    Receive(usize),
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
        })
    }
}

impl Collective {
    /// The name of the group's method.
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce(_) => "all_reduce",
            Collective::Broadcast(_) => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter(_) => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Send(_) => "send",
            Collective::Receive(_) => "receive",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce(reduction) | Collective::ReduceScatter(reduction) => {
                write!(f, "{} ({reduction})", self.name())
            }
            Collective::Broadcast(root) => write!(f, "broadcast from rank {root}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// A backend's own state, which it alone can read.
pub type Opaque = Box<dyn Any + Send + Sync>;

/// A library that exchanges tensors among devices of one kind. Calls are enqueued beside the device's queue, and run in the order of
/// the calls.
pub trait Collectives: Send + Sync {
    /// A new identity of a group, made by one rank and given to all.
    fn identity(&self) -> Result<Vec<u8>>;

    /// The membership of this device in a group. Waits until all ranks call it with the same identity, at most for `timeout`.
    fn join(&self, identity: &[u8], rank: usize, size: usize, timeout: Duration) -> Result<Opaque>;

    /// Enqueues a collective after everything that is in the device's queue now. Operands are contiguous, and must live until the
    /// result was [awaited](Collectives::wait). Returns the mark of its end.
    fn start(&self, member: &Opaque, collective: Collective, input: Operand<'_>, output: Operand<'_>)
    -> Result<Opaque>;

    /// Makes work that is enqueued from now on run after the mark. The host does not wait.
    fn wait(&self, member: &Opaque, mark: &Opaque) -> Result<()>;

    /// True if the device has come to the mark. Reports errors of the group that were found since.
    fn is_done(&self, member: &Opaque, mark: &Opaque) -> Result<bool>;

    /// Ends the group's unfinished collectives, so that nobody waits for them.
    fn abort(&self, member: &Opaque);
}

/// A device's membership in a group whose devices exchange tensors without the host.
pub struct Link {
    device: Device,
    member: Opaque,
}

/// The end of a collective in a device's queue.
#[derive(Clone)]
pub struct Mark(Arc<Opaque>);

/// A collective that was enqueued.
pub struct Started {
    /// Its end.
    pub mark: Mark,
    /// Kept until the result was awaited.
    _input: Tensor,
    output: Tensor,
}

impl Link {
    /// A new identity of a group; `None` if the device has no library of collectives.
    pub fn identity(device: &Device) -> Result<Option<Vec<u8>>> {
        device.backend().collectives().map(Collectives::identity).transpose()
    }

    /// Joins a group, as all its ranks must do at once. Errors: `Unsupported` if the device has no library of collectives; `Backend`, also if
    /// a rank does not come within `timeout`.
    pub fn join(device: &Device, identity: &[u8], rank: usize, size: usize, timeout: Duration) -> Result<Link> {
        let member = library(device)?.join(identity, rank, size, timeout)?;
        Ok(Link { device: device.clone(), member })
    }

    /// Enqueues a collective, which overwrites `output`. Both tensors are contiguous, and of one dtype.
    pub fn start(&self, collective: Collective, input: &Tensor, output: &Tensor) -> Result<Started> {
        let op = collective.name();
        check_same(op, &[input, output])?;
        let input = &input.clone().resident(op, Access::Read)?;
        if *input.device() != self.device || !input.is_contiguous() || !output.is_contiguous() {
            let message = format!("got {}, expected contiguous tensors on {}", describe(&[input, output]), self.device);
            return Err(Error::device(op, message));
        }
        let mark = library(&self.device)?.start(&self.member, collective, input.operand(), output.operand())?;
        output.touch();
        Ok(Started { mark: Mark(Arc::new(mark)), _input: input.clone(), output: output.clone() })
    }

    /// The result of a collective, for work that is enqueued from now on. The host does not wait.
    pub fn finish(&self, started: Started) -> Result<Tensor> {
        library(&self.device)?.wait(&self.member, &started.mark.0)?;
        Ok(started.output)
    }

    /// True if the device has come to the mark. Errors: `Backend` if the group has failed.
    pub fn is_done(&self, mark: &Mark) -> Result<bool> {
        library(&self.device)?.is_done(&self.member, &mark.0)
    }

    /// Ends unfinished collectives, so that nobody waits for them.
    pub fn abort(&self) {
        if let Ok(library) = library(&self.device) {
            library.abort(&self.member);
        }
    }
}

fn library(device: &Device) -> Result<&dyn Collectives> {
    let missing = || Error::unsupported("collective", format!("{device} has no library of collectives"));
    device.backend().collectives().ok_or_else(missing)
}
