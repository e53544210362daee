//! NCCL, NVIDIA's library of collectives, and RCCL, AMD's, which has the same functions.

// C: handles, and memory without types.
#![allow(unsafe_code)]

use crate::driver::ccl::{self, Beside, Operands};
use crate::driver::{Address, Handle};
use crate::vendor::dynlib::{Library, library};
use isograd_core::collective::{Collective, Opaque, Reduction};
use isograd_core::{DType, Error, Result};
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, sync_channel};
use std::thread;
use std::time::Duration;

/// Bytes of an identity, `NCCL_UNIQUE_ID_BYTES`.
const IDENTITY: usize = 128;
/// `ncclSuccess`.
const SUCCESS: Code = 0;
/// `ncclInProgress`: no error.
const IN_PROGRESS: Code = 7;
/// The first version with `ncclAvg`, 2.10.
const OLDEST: c_int = 2_10_00;

type Code = c_int;
type Pointer = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Identity([c_char; IDENTITY]);

library! {
    struct Functions;
    "ncclGetVersion" version: fn(*mut c_int) -> Code;
    "ncclGetUniqueId" identity: fn(*mut Identity) -> Code;
    "ncclCommInitRank" join: fn(*mut Pointer, c_int, Identity, c_int) -> Code;
    "ncclCommDestroy" destroy: fn(Pointer) -> Code;
    "ncclCommAbort" abort: fn(Pointer) -> Code;
    "ncclCommGetAsyncError" error: fn(Pointer, *mut Code) -> Code;
    "ncclGetErrorString" text: fn(Code) -> *const c_char;
    "ncclGetLastError" last [optional]: fn(Pointer) -> *const c_char;
    "ncclAllReduce" all_reduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    "ncclReduceScatter" reduce_scatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    // The second number is the root.
    "ncclBroadcast" broadcast: fn(*const c_void, *mut c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    "ncclAllGather" all_gather: fn(*const c_void, *mut c_void, usize, c_int, Pointer, Pointer) -> Code;
    "ncclSend" send: fn(*const c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    "ncclRecv" receive: fn(*mut c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    "ncclGroupStart" begin: fn() -> Code;
    "ncclGroupEnd" end: fn() -> Code;
}

/// The library.
pub struct Ccl {
    name: &'static str,
    version: c_int,
    functions: Functions,
}

impl Ccl {
    /// The functions of an opened library. The error says what is missing.
    pub fn new(name: &'static str, library: &'static Library) -> std::result::Result<Ccl, String> {
        // SAFETY: the types are those of nccl.h and rccl.h, which have been the same since version 2.10 (an enum is an int, a
        // communicator and a stream are pointers, an identity is passed by value).
        let functions = unsafe { Functions::of(library) }?;
        let mut version = 0;
        // SAFETY: the number is written where it is.
        unsafe { (functions.version)(&mut version) };
        let found = Ccl { name, version, functions };
        match version >= OLDEST {
            true => Ok(found),
            false => Err(format!("it has version {}, expected 2.10 or later", found.version())),
        }
    }

    /// The version, `2.27.5`.
    pub fn version(&self) -> String {
        format!("{}.{}.{}", self.version / 10000, self.version / 100 % 100, self.version % 100)
    }

    fn check(&self, op: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        let text = |text: *const c_char| {
            // SAFETY: the library returns texts that end with 0 and live as long as it does.
            if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
        };
        // SAFETY: both functions take any code, and no communicator.
        let (what, more) =
            unsafe { (text((self.functions.text)(code)), self.functions.last.map(|last| text(last(null_mut())))) };
        let more = more.filter(|more| !more.is_empty()).map(|more| format!(" ({more})")).unwrap_or_default();
        Err(Error::backend(op, format!("{}: {code}: {what}{more}", self.name)))
    }
}

/// A function that makes a second queue.
type MakeQueue = Box<dyn Fn() -> Result<Box<dyn Beside>> + Send + Sync>;

/// The library on a device.
pub struct Collectives {
    library: &'static Ccl,
    queue: MakeQueue,
}

impl Collectives {
    /// The library on the device whose queues `queue` makes.
    pub fn new(
        library: &'static Ccl,
        queue: impl Fn() -> Result<Box<dyn Beside>> + Send + Sync + 'static,
    ) -> Collectives {
        Collectives { library, queue: Box::new(queue) }
    }
}

/// A communicator, and the queue in which it works.
struct Member {
    library: &'static Ccl,
    /// Locked while something is enqueued: a communicator serves one thread at a time.
    communicator: Mutex<Pointer>,
    is_aborted: AtomicBool,
    queue: Box<dyn Beside>,
    size: usize,
}

// SAFETY: a communicator belongs to no thread, and the lock lets in one at a time.
unsafe impl Send for Member {}
// SAFETY: as above.
unsafe impl Sync for Member {}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.is_aborted.load(Ordering::Acquire) && self.queue.enter().is_ok() {
            // SAFETY: the communicator was made by `join`, and is used no more.
            unsafe { (self.library.functions.destroy)(*self.communicator.get_mut()) };
        }
    }
}

fn member(member: &Opaque) -> Result<&Member> {
    let found = member.downcast_ref::<Arc<Member>>();
    found.map(|found| &**found).ok_or_else(|| Error::backend("collective", "the group is of another device"))
}

fn mark(mark: &Opaque) -> Result<&Handle> {
    mark.downcast_ref().ok_or_else(|| Error::backend("collective", "the mark is of another device"))
}

/// `ncclDataType_t`.
fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::U8 | DType::Bool => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// `ncclRedOp_t`.
fn function(reduction: Reduction) -> c_int {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Max => 2,
        Reduction::Mean => 4,
    }
}

fn pointer(address: Address) -> Pointer {
    std::ptr::without_provenance_mut(address as usize)
}

impl Member {
    /// Calls the library with the communicator and the queue.
    fn call(&self, op: &'static str, f: impl FnOnce(Pointer, Pointer) -> Code) -> Result<()> {
        let communicator = self.communicator.lock();
        if self.is_aborted.load(Ordering::Acquire) {
            return Err(Error::backend(op, "the group has failed before"));
        }
        let queue = self.queue.enter()?;
        self.library.check(op, f(*communicator, queue))
    }

    fn enqueue(&self, collective: Collective, operands: &Operands) -> Result<()> {
        let Operands { dtype, input: (from, given), output: (to, received) } = *operands;
        let (from, to, kind) = (pointer(from), pointer(to), data_type(dtype));
        let library = &self.library.functions;
        // SAFETY: both operands are within allocations of these numbers of elements, which the caller keeps until the mark was
        // awaited; the communicator and the queue live.
        self.call(collective.name(), |member, queue| unsafe {
            match collective {
                Collective::AllReduce(f) => (library.all_reduce)(from, to, given, kind, function(f), member, queue),
                Collective::Broadcast(root) => (library.broadcast)(from, to, given, kind, root as c_int, member, queue),
                Collective::AllGather => (library.all_gather)(from, to, given, kind, member, queue),
                Collective::ReduceScatter(f) => {
                    (library.reduce_scatter)(from, to, received, kind, function(f), member, queue)
                }
                Collective::Send(rank) => (library.send)(from, given, kind, rank as c_int, member, queue),
                Collective::Receive(rank) => (library.receive)(to, received, kind, rank as c_int, member, queue),
                Collective::AllToAll => {
                    let part = given / self.size;
                    let step = (part * dtype.size()) as Address;
                    let (from, to) = (operands.input.0, operands.output.0);
                    let mut code = (library.begin)();
                    for rank in 0..self.size {
                        let (at, peer) = (rank as Address * step, rank as c_int);
                        if code == SUCCESS {
                            code = (library.send)(pointer(from + at), part, kind, peer, member, queue);
                        }
                        if code == SUCCESS {
                            code = (library.receive)(pointer(to + at), part, kind, peer, member, queue);
                        }
                    }
                    let ended = (library.end)();
                    if code == SUCCESS { ended } else { code }
                }
            }
        })
    }

    /// Ends unfinished collectives, and all later ones.
    fn abort(&self) {
        // A thread may hold the lock and wait within the library, which abort ends.
        if !self.is_aborted.swap(true, Ordering::AcqRel) && self.queue.enter().is_ok() {
            // SAFETY: the library allows another thread to abort; no call after this one reaches the communicator.
            let communicator = match self.communicator.try_lock() {
                Some(communicator) => *communicator,
                // SAFETY: the pointer is written when it is made and never again.
                None => unsafe { *self.communicator.data_ptr() },
            };
            // SAFETY: as above.
            unsafe { (self.library.functions.abort)(communicator) };
        }
    }
}

impl Ccl {
    /// The member of a group, as soon as all its ranks join.
    fn joined(&'static self, queue: Box<dyn Beside>, identity: Identity, rank: usize, size: usize) -> Result<Member> {
        queue.enter()?;
        let mut communicator = null_mut();
        // SAFETY: the communicator is written where it is; the device is the thread's.
        let code = unsafe { (self.functions.join)(&mut communicator, size as c_int, identity, rank as c_int) };
        self.check("join", code)?;
        let communicator = Mutex::new(communicator);
        Ok(Member { library: self, communicator, is_aborted: AtomicBool::new(false), queue, size })
    }
}

impl ccl::Library for Collectives {
    fn identity(&self) -> Result<Vec<u8>> {
        let mut identity = Identity([0; IDENTITY]);
        // SAFETY: the identity is written where it is.
        self.library.check("identity", unsafe { (self.library.functions.identity)(&mut identity) })?;
        Ok(identity.0.map(|byte| byte as u8).to_vec())
    }

    fn join(&self, identity: &[u8], rank: usize, size: usize, timeout: Duration) -> Result<Opaque> {
        let bytes: [u8; IDENTITY] = identity.try_into().map_err(|_| {
            Error::backend("join", format!("an identity has {} bytes, expected {IDENTITY}", identity.len()))
        })?;
        let identity = Identity(bytes.map(|byte| byte as c_char));
        let (library, queue) = (self.library, (self.queue)()?);
        let (sender, receiver) = sync_channel(0);
        let join = move || {
            let joined = library.joined(queue, identity, rank, size);
            // Nobody waits any longer: the member ends its group, so that no rank begins a collective in it.
            if let Err(SendError(Ok(late))) = sender.send(joined) {
                late.abort();
            }
        };
        // The library waits without end for a rank that does not come, and a communicator that can be ended before it is there makes every
        // collective a thread of its own. The thread waits in its place, beyond the deadline if it must.
        let thread = thread::Builder::new().name("isograd-join".into()).spawn(join);
        thread.map_err(|e| Error::backend("join", format!("no thread can be started: {e}")))?;
        match receiver.recv_timeout(timeout) {
            Ok(joined) => Ok(Box::new(Arc::new(joined?))),
            Err(_) => {
                let ranks = format!("rank {rank} of {size}");
                Err(Error::backend("join", format!("{}: {ranks} waited {timeout:?} for the others", library.name)))
            }
        }
    }

    fn start(&self, group: &Opaque, collective: Collective, operands: &Operands) -> Result<Opaque> {
        let member = member(group)?;
        member.queue.follow()?;
        member.enqueue(collective, operands)?;
        Ok(Box::new(member.queue.mark()?))
    }

    fn wait(&self, group: &Opaque, at: &Opaque) -> Result<()> {
        member(group)?.queue.lead(mark(at)?)
    }

    fn is_done(&self, group: &Opaque, at: &Opaque) -> Result<bool> {
        let (member, mut found) = (member(group)?, SUCCESS);
        // SAFETY: the code is written where it is.
        member.call("collective", |communicator, _| unsafe {
            (self.library.functions.error)(communicator, &mut found)
        })?;
        self.library.check("collective", found)?;
        member.queue.is_past(mark(at)?)
    }

    fn abort(&self, group: &Opaque) {
        if let Ok(member) = member(group) {
            member.abort();
        }
    }
}
