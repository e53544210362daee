//! MPI, opened at run time: Open MPI, and libraries with MPICH's ABI (MPICH, Intel MPI, Cray MPI).

// C: handles of two kinds, and memory without types.
#![allow(unsafe_code)]

use crate::sys::open_mpi;
use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result};
use libloading::Library;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// File names of the library. `ISOGRAD_MPI_LIB` is a path of another.
const NAMES: [&str; 5] = ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so", "libmpi.12.dylib"];
/// The channel on which a rank says that it leaves.
const LEAVING: c_int = 0;
/// Bytes of the largest message; a longer one is sent in parts. MPI counts in `int`.
const MOST: usize = 1 << 30;
/// Bytes of the number of bytes at the beginning of a message.
const LENGTH: usize = 8;
/// `MPI_THREAD_SERIALIZED`: several threads call, one at a time.
const SERIALIZED: c_int = 2;
/// `MPI_SUCCESS`.
const SUCCESS: Code = 0;
/// `MPI_MAX_ERROR_STRING` of Open MPI is 256, that of MPICH 512; `MPI_MAX_LIBRARY_VERSION_STRING` 256 and 8192.
const TEXT: usize = 8192;
/// Looks for a message between which other threads run, before the thread sleeps.
const SPINS: u32 = 200;
/// The time for which a thread sleeps between looks.
const NAP: Duration = Duration::from_micros(50);

type Code = c_int;
/// A pointer in Open MPI, an int in MPICH, which reads the lower half of the register.
type Constant = usize;

/// `MPI_Status`: 24 bytes in Open MPI, 20 in MPICH.
type Status = [u64; 8];

/// The library.
struct Mpi {
    world: Constant,
    byte: Constant,
    /// The handler that returns errors to the caller.
    returns: Constant,
    is_initialized: unsafe extern "C" fn(*mut c_int) -> Code,
    handle_errors: unsafe extern "C" fn(Constant, Constant) -> Code,
    init: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> Code,
    finalize: unsafe extern "C" fn() -> Code,
    abort: unsafe extern "C" fn(Constant, c_int) -> Code,
    rank: unsafe extern "C" fn(Constant, *mut c_int) -> Code,
    size: unsafe extern "C" fn(Constant, *mut c_int) -> Code,
    send: unsafe extern "C" fn(*const c_void, c_int, Constant, c_int, c_int, Constant, *mut Constant) -> Code,
    probe: unsafe extern "C" fn(c_int, c_int, Constant, *mut c_int, *mut Status) -> Code,
    count: unsafe extern "C" fn(*const Status, Constant, *mut c_int) -> Code,
    receive: unsafe extern "C" fn(*mut c_void, c_int, Constant, c_int, c_int, Constant, *mut Constant) -> Code,
    test: unsafe extern "C" fn(*mut Constant, *mut c_int, *mut Status) -> Code,
    text: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> Code,
    version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> Code,
    // The functions are in it; tests have their own.
    _library: Option<Library>,
}

impl Mpi {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    fn open() -> Result<&'static Mpi> {
        static OPENED: OnceLock<std::result::Result<Mpi, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| {
            let own = std::env::var("ISOGRAD_MPI_LIB").ok();
            let names: Vec<&str> = own.as_deref().into_iter().chain(NAMES).collect();
            let library = names.iter().find_map(|name| open_mpi(name).ok()).ok_or_else(|| {
                format!(
                    "the loader finds none of {} (apt install libopenmpi3, or set ISOGRAD_MPI_LIB)",
                    names.join(", ")
                )
            })?;
            Mpi::of(library).map_err(|e| e.to_string())
        });
        opened.as_ref().map_err(|why| Error::device("mpi", format!("MPI cannot be opened: {why}")))
    }

    fn of(library: Library) -> std::result::Result<Mpi, libloading::Error> {
        // SAFETY: the types are those of mpi.h. Handles of Open MPI are addresses of the library's own objects; those of MPICH are
        // ints, which are passed in the lower half of a register. The library is kept.
        unsafe {
            let object = |name: &str| library.get::<*mut c_void>(name.as_bytes()).map(|found| found.addr());
            let (world, byte, returns) = match object("ompi_mpi_comm_world") {
                Ok(world) => (world, object("ompi_mpi_byte")?, object("ompi_mpi_errors_return")?),
                // MPI_COMM_WORLD, MPI_BYTE and MPI_ERRORS_RETURN of MPICH's ABI.
                Err(_) => (0x4400_0000, 0x4c00_010d, 0x5400_0001),
            };
            Ok(Mpi {
                world,
                byte,
                returns,
                is_initialized: *library.get(b"MPI_Initialized")?,
                handle_errors: *library.get(b"MPI_Comm_set_errhandler")?,
                init: *library.get(b"MPI_Init_thread")?,
                finalize: *library.get(b"MPI_Finalize")?,
                abort: *library.get(b"MPI_Abort")?,
                rank: *library.get(b"MPI_Comm_rank")?,
                size: *library.get(b"MPI_Comm_size")?,
                send: *library.get(b"MPI_Isend")?,
                probe: *library.get(b"MPI_Iprobe")?,
                count: *library.get(b"MPI_Get_count")?,
                receive: *library.get(b"MPI_Irecv")?,
                test: *library.get(b"MPI_Test")?,
                text: *library.get(b"MPI_Error_string")?,
                version: *library.get(b"MPI_Get_library_version")?,
                _library: Some(library),
            })
        }
    }

    fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let what = text(|at, length| {
            // SAFETY: the text has room for the longest that MPI writes.
            unsafe { (self.text)(code, at, length) }
        });
        Err(Error::backend("mpi", format!("{call}: {code}: {what}")))
    }
}

/// The text that a function of MPI's writes.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> Code) -> String {
    let (mut bytes, mut length) = (vec![0u8; TEXT], 0);
    if write(bytes.as_mut_ptr().cast(), &mut length) != SUCCESS {
        return "no text".into();
    }
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A part of a message that is on its way: MPI reads or writes the bytes until the request is complete.
struct Transfer {
    request: Constant,
    bytes: Vec<u8>,
}

/// The functions, which one thread at a time may call, and the memory that MPI reads and writes between calls.
struct Calls {
    mpi: &'static Mpi,
    outgoing: Vec<Transfer>,
    /// By the number of the receive.
    incoming: HashMap<u64, Transfer>,
    receives: u64,
    /// The ranks whose farewell was received.
    gone: Vec<usize>,
}

impl Drop for Calls {
    /// Transfers that are not complete are kept for ever: MPI may still read or write them.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.outgoing));
        std::mem::forget(std::mem::take(&mut self.incoming));
    }
}

impl Calls {
    fn new(mpi: &'static Mpi) -> Calls {
        Calls { mpi, outgoing: Vec::new(), incoming: HashMap::new(), receives: 0, gone: Vec::new() }
    }

    /// Begins to send a part of a message.
    fn send(&mut self, to: usize, channel: c_int, bytes: Vec<u8>) -> Result<()> {
        let (at, count, mut request) = (bytes.as_ptr().cast(), bytes.len() as c_int, 0);
        // SAFETY: the bytes are kept until the request is complete.
        let code =
            unsafe { (self.mpi.send)(at, count, self.mpi.byte, to as c_int, channel, self.mpi.world, &mut request) };
        self.mpi.check("MPI_Isend", code)?;
        self.outgoing.push(Transfer { request, bytes });
        Ok(())
    }

    /// Gives up messages that have arrived.
    fn progress(&mut self) -> Result<()> {
        let mut i = 0;
        while i < self.outgoing.len() {
            if is_complete(self.mpi, &mut self.outgoing[i].request)? {
                self.outgoing.swap_remove(i);
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// The bytes of a part of a message that has come, or of none.
    fn waiting(&self, from: usize, channel: c_int) -> Result<Option<usize>> {
        let (mut is, mut status, mut count) = (0, Status::default(), 0);
        // SAFETY: status and numbers are written where they are.
        unsafe {
            let code = (self.mpi.probe)(from as c_int, channel, self.mpi.world, &mut is, &mut status);
            self.mpi.check("MPI_Iprobe", code)?;
            if is == 0 {
                return Ok(None);
            }
            self.mpi.check("MPI_Get_count", (self.mpi.count)(&status, self.mpi.byte, &mut count))?;
        }
        let unknown = |_| Error::backend("mpi", format!("rank {from} sent a message of {count} bytes"));
        usize::try_from(count).map(Some).map_err(unknown)
    }

    /// Begins to receive the next part of a message, if it has come.
    fn begin(&mut self, from: usize, channel: c_int) -> Result<Option<Begun>> {
        let Some(size) = self.waiting(from, channel)? else {
            // A rank's messages come before its farewell, and one may have come since the look above.
            let has_left = self.gone.contains(&from) || self.waiting(from, LEAVING)?.is_some();
            return Ok((has_left && self.waiting(from, channel)?.is_none()).then_some(Begun::Left));
        };
        let mut bytes = vec![0u8; size];
        let (at, count, mut request) = (bytes.as_mut_ptr().cast(), size as c_int, 0);
        // SAFETY: the buffer has room for the message that was found, which no other thread has taken since, and is kept until the
        // request is complete.
        let code = unsafe {
            (self.mpi.receive)(at, count, self.mpi.byte, from as c_int, channel, self.mpi.world, &mut request)
        };
        self.mpi.check("MPI_Irecv", code)?;
        self.receives += 1;
        self.incoming.insert(self.receives, Transfer { request, bytes });
        Ok(Some(Begun::Receive(self.receives)))
    }

    /// The bytes of a receive, if it is complete. After an error it stays, because MPI may still write.
    fn end(&mut self, receive: u64) -> Result<Option<Vec<u8>>> {
        let Some(transfer) = self.incoming.get_mut(&receive) else { return Ok(None) };
        match is_complete(self.mpi, &mut transfer.request)? {
            true => Ok(self.incoming.remove(&receive).map(|transfer| transfer.bytes)),
            false => Ok(None),
        }
    }
}

/// True if a request is complete, and its handle given back.
fn is_complete(mpi: &Mpi, request: &mut Constant) -> Result<bool> {
    let (mut is, mut status) = (0, Status::default());
    // SAFETY: the request was made by MPI and is not complete.
    let code = unsafe { (mpi.test)(request, &mut is, &mut status) };
    mpi.check("MPI_Test", code).map(|()| is != 0)
}

enum Begun {
    /// The number of the receive.
    Receive(u64),
    Left,
}

enum Arrival {
    Bytes(Vec<u8>),
    Left,
    Late,
}

/// The processes that `mpirun` or `srun` has started. There is one in a process.
pub struct Processes {
    rank: usize,
    size: usize,
    /// The time that a call may take in which all processes take part.
    timeout: Duration,
    calls: Mutex<Calls>,
}

// SAFETY: MPI's handles belong to no thread, and calls are made one at a time, as `MPI_THREAD_SERIALIZED` asks.
unsafe impl Send for Calls {}

impl Processes {
    /// Starts MPI in this process. Errors: `Device` if there is no library; `Backend`; `Value` if it was started before.
    pub fn start(timeout: Duration) -> Result<Processes> {
        let mpi = Mpi::open()?;
        let (mut provided, mut is_started, mut rank, mut size) = (0, 0, 0, 0);
        // SAFETY: the numbers are written where they are; the arguments of the program may be absent.
        unsafe {
            mpi.check("MPI_Initialized", (mpi.is_initialized)(&mut is_started))?;
            if is_started != 0 {
                return Err(Error::value("mpi", "MPI was started before in this process"));
            }
            let init = || (mpi.init)(null_mut(), null_mut(), SERIALIZED, &mut provided);
            mpi.check("MPI_Init_thread", within(timeout, "MPI_Init_thread", init)?)?;
            mpi.check("MPI_Comm_set_errhandler", (mpi.handle_errors)(mpi.world, mpi.returns))?;
            mpi.check("MPI_Comm_rank", (mpi.rank)(mpi.world, &mut rank))?;
            mpi.check("MPI_Comm_size", (mpi.size)(mpi.world, &mut size))?;
        }
        if provided < SERIALIZED {
            return Err(Error::unsupported(
                "mpi",
                "the library serves one thread only, expected MPI_THREAD_SERIALIZED",
            ));
        }
        let calls = Mutex::new(Calls::new(mpi));
        Ok(Processes { rank: rank as usize, size: size as usize, timeout, calls })
    }

    /// Ends all processes of the job, without a word.
    pub fn abort(&self) {
        let calls = self.calls.lock();
        // SAFETY: MPI is started.
        unsafe { (calls.mpi.abort)(calls.mpi.world, 1) };
    }

    /// Ends MPI. All processes do so, after they have left.
    pub fn finish(&self) {
        let calls = self.calls.lock();
        // SAFETY: MPI is started, and no call comes after this one.
        let finalize = || unsafe { (calls.mpi.finalize)() };
        // Without a thread that watches, MPI ends without one.
        if within(self.timeout, "MPI_Finalize", finalize).is_err() {
            finalize();
        }
    }

    /// Calls `look` until it finds something; `None` after the deadline. Messages on their way go on meanwhile.
    fn until<T>(&self, deadline: Instant, mut look: impl FnMut(&mut Calls) -> Result<Option<T>>) -> Result<Option<T>> {
        for looks in 0u32.. {
            let mut calls = self.calls.lock();
            if let Some(found) = look(&mut calls)? {
                return Ok(Some(found));
            }
            calls.progress()?;
            drop(calls);
            if looks < SPINS {
                std::thread::yield_now();
                continue;
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(NAP);
        }
        Ok(None)
    }

    /// The next part of a message.
    fn part(&self, from: usize, channel: c_int, deadline: Instant) -> Result<Arrival> {
        let receive = match self.until(deadline, |calls| calls.begin(from, channel))? {
            Some(Begun::Receive(receive)) => receive,
            Some(Begun::Left) => return Ok(Arrival::Left),
            None => return Ok(Arrival::Late),
        };
        Ok(self.until(deadline, |calls| calls.end(receive))?.map_or(Arrival::Late, Arrival::Bytes))
    }
}

/// Runs a call in which all processes take part. If it does not end in time, a rank hangs, and this process ends with a word about it.
/// Errors: `Value` if no thread can be started, and the call was not made.
fn within<T>(timeout: Duration, what: &'static str, call: impl FnOnce() -> T) -> Result<T> {
    let (ended, end) = channel::<()>();
    let watch = move || {
        if end.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            eprintln!("isograd: {what} did not end within {timeout:?}: a rank hangs");
            std::process::abort();
        }
    };
    let thread = std::thread::Builder::new().name("isograd-mpi".to_string()).spawn(watch);
    thread.map_err(|e| Error::value("mpi", format!("no thread could be started: {e}")).with_source(e))?;
    let result = call();
    drop(ended);
    Ok(result)
}

impl Transport for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, channel: u32, message: Message) -> Result<()> {
        let framed = message.head.framed(&message.body);
        let bytes = [&(framed.len() as u64).to_le_bytes()[..], &framed].concat();
        let mut calls = self.calls.lock();
        calls.progress()?;
        bytes.chunks(MOST).try_for_each(|part| calls.send(to, channel as c_int, part.to_vec()))
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        let mut bytes = match self.part(from, channel as c_int, deadline)? {
            Arrival::Bytes(bytes) => bytes,
            Arrival::Left => return Ok(Received::Left),
            Arrival::Late => return Ok(Received::Late),
        };
        let damaged = || Error::backend("mpi", format!("rank {from} sent a message that is none of isograd's"));
        let length = u64::from_le_bytes(*bytes.first_chunk::<LENGTH>().ok_or_else(damaged)?);
        let whole = usize::try_from(length).ok().and_then(|length| length.checked_add(LENGTH)).ok_or_else(damaged)?;
        while bytes.len() < whole {
            match self.part(from, channel as c_int, deadline)? {
                Arrival::Bytes(more) => bytes.extend(more),
                Arrival::Left => return Ok(Received::Left),
                Arrival::Late => return Ok(Received::Late),
            }
        }
        Message::unframed(&bytes[LENGTH..]).map(Received::Message).ok_or_else(damaged)
    }

    fn leave(&self) {
        let mut calls = self.calls.lock();
        for to in (0..self.size).filter(|to| *to != self.rank) {
            // A rank that cannot be told finds the end of the process.
            let _ = calls.send(to, LEAVING, Vec::new());
        }
    }

    /// Some libraries warn of messages that nobody has received, farewells too.
    fn wait_for_others(&self, deadline: Instant) -> Vec<usize> {
        for from in (0..self.size).filter(|from| *from != self.rank) {
            let is_known = self.calls.lock().gone.contains(&from);
            if !is_known && matches!(self.part(from, LEAVING, deadline), Ok(Arrival::Bytes(_) | Arrival::Left)) {
                self.calls.lock().gone.push(from);
            }
        }
        let calls = self.calls.lock();
        (0..self.size).filter(|rank| *rank != self.rank && !calls.gone.contains(rank)).collect()
    }

    fn words(&self) -> String {
        let calls = self.calls.lock();
        // SAFETY: the text has room for the longest that MPI writes.
        let version = text(|at, length| unsafe { (calls.mpi.version)(at, length) });
        let name = version.split([',', '\n']).next().unwrap_or_default();
        let name: Vec<&str> = name.split_whitespace().collect();
        format!("{} processes, {}", self.size, name.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A library that says that a message of 4 bytes has come, and cannot say whether it is complete.
    fn failing() -> &'static Mpi {
        unsafe extern "C" fn number(_: *mut c_int) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn handler(_: Constant, _: Constant) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn init(_: *mut c_int, _: *mut *mut *mut c_char, _: c_int, _: *mut c_int) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn nothing() -> Code {
            SUCCESS
        }
        unsafe extern "C" fn abort(_: Constant, _: c_int) -> Code {
            ABORTED.store(true, Ordering::Release);
            SUCCESS
        }
        unsafe extern "C" fn about(_: Constant, _: *mut c_int) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn send(
            _: *const c_void,
            _: c_int,
            _: Constant,
            _: c_int,
            _: c_int,
            _: Constant,
            _: *mut Constant,
        ) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn probe(_: c_int, channel: c_int, _: Constant, is: *mut c_int, _: *mut Status) -> Code {
            // SAFETY: the caller's number.
            unsafe { *is = c_int::from(channel != LEAVING) };
            SUCCESS
        }
        unsafe extern "C" fn count(_: *const Status, _: Constant, count: *mut c_int) -> Code {
            // SAFETY: the caller's number.
            unsafe { *count = 4 };
            SUCCESS
        }
        unsafe extern "C" fn receive(
            _: *mut c_void,
            _: c_int,
            _: Constant,
            _: c_int,
            _: c_int,
            _: Constant,
            _: *mut Constant,
        ) -> Code {
            SUCCESS
        }
        unsafe extern "C" fn test(_: *mut Constant, _: *mut c_int, _: *mut Status) -> Code {
            17
        }
        unsafe extern "C" fn text(_: c_int, _: *mut c_char, _: *mut c_int) -> Code {
            17
        }
        unsafe extern "C" fn version(_: *mut c_char, _: *mut c_int) -> Code {
            17
        }
        Box::leak(Box::new(Mpi {
            world: 0,
            byte: 0,
            returns: 0,
            is_initialized: number,
            handle_errors: handler,
            init,
            finalize: nothing,
            abort,
            rank: about,
            size: about,
            send,
            probe,
            count,
            receive,
            test,
            text,
            version,
            _library: None,
        }))
    }

    static ABORTED: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_buffer_is_kept_while_mpi_may_write_to_it() {
        let processes =
            Processes { rank: 0, size: 2, timeout: Duration::from_secs(1), calls: Mutex::new(Calls::new(failing())) };
        let error = processes.receive(1, 2, Instant::now()).unwrap_err();
        assert!(error.message().starts_with("MPI_Test: 17"), "{error}");
        assert_eq!(processes.calls.lock().incoming.len(), 1);
    }

    #[test]
    fn a_rank_without_a_farewell_is_named_at_the_deadline() {
        let processes =
            Processes { rank: 0, size: 2, timeout: Duration::from_secs(1), calls: Mutex::new(Calls::new(failing())) };
        assert_eq!(processes.wait_for_others(Instant::now() + Duration::from_millis(20)), [1]);
        processes.abort();
        assert!(ABORTED.load(Ordering::Acquire));
    }
}
