//! MPI, opened at run time: Open MPI, and libraries with MPICH's ABI (MPICH, Intel MPI, Cray MPI).

// C: handles of two kinds, and memory without types.
#![allow(unsafe_code)]

use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result};
use libloading::Library;
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::OnceLock;
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
/// The time that a rank that leaves waits for the others to take its messages.
const FAREWELL: Duration = Duration::from_secs(30);

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
    // The functions are in it.
    _library: Library,
}

impl Mpi {
    /// The library, opened once. Errors: `Device`, with where it was looked for.
    fn open() -> Result<&'static Mpi> {
        static OPENED: OnceLock<std::result::Result<Mpi, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| {
            let own = std::env::var("ISOGRAD_MPI_LIB").ok();
            let names: Vec<&str> = own.as_deref().into_iter().chain(NAMES).collect();
            let library = names.iter().find_map(|name| load(name).ok()).ok_or_else(|| {
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
                _library: library,
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

#[cfg(unix)]
fn load(name: &str) -> std::result::Result<Library, libloading::Error> {
    use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};
    // Open MPI's plugins find the library's functions among those of the program.
    // SAFETY: MPI's initialisers ask nothing of a program.
    Ok(unsafe { Unix::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }?.into())
}

#[cfg(not(unix))]
fn load(name: &str) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: MPI's initialisers ask nothing of a program.
    unsafe { Library::new(name) }
}

/// A part of a message that is on its way.
struct Outgoing {
    request: Constant,
    /// Read by MPI until the request is complete.
    _bytes: Arc<[u8]>,
}

/// The processes that `mpirun` or `srun` has started. There is one in a process.
pub struct Processes {
    mpi: &'static Mpi,
    rank: usize,
    size: usize,
    /// Locked for each call of MPI's functions, which may come from one thread at a time.
    outgoing: Mutex<Vec<Outgoing>>,
}

// SAFETY: MPI's handles belong to no thread, and calls are made one at a time, as `MPI_THREAD_SERIALIZED` asks.
unsafe impl Send for Processes {}
// SAFETY: as above.
unsafe impl Sync for Processes {}

impl Processes {
    /// Starts MPI in this process. Errors: `Device` if there is no library; `Backend`; `Value` if it was started before.
    pub fn start() -> Result<Processes> {
        let mpi = Mpi::open()?;
        let (mut provided, mut is_started, mut rank, mut size) = (0, 0, 0, 0);
        // SAFETY: the numbers are written where they are; the arguments of the program may be absent.
        unsafe {
            mpi.check("MPI_Initialized", (mpi.is_initialized)(&mut is_started))?;
            if is_started != 0 {
                return Err(Error::value("mpi", "MPI was started before in this process"));
            }
            mpi.check("MPI_Init_thread", (mpi.init)(null_mut(), null_mut(), SERIALIZED, &mut provided))?;
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
        Ok(Processes { mpi, rank: rank as usize, size: size as usize, outgoing: Mutex::default() })
    }

    /// Ends all processes of the job, without a word.
    pub fn abort(&self) {
        // SAFETY: MPI is started.
        unsafe { (self.mpi.abort)(self.mpi.world, 1) };
    }

    /// Ends MPI. All processes do so, after they have left.
    pub fn finish(&self) {
        // Some libraries warn of messages that nobody has received.
        let end = Instant::now() + FAREWELL;
        for from in (0..self.size).filter(|from| *from != self.rank) {
            let _ = self.part(from, LEAVING, end);
        }
        let _one = self.outgoing.lock();
        // SAFETY: MPI is started, and no call comes after this one.
        unsafe { (self.mpi.finalize)() };
    }

    /// True if a request is complete, and its handle given back.
    fn is_complete(&self, request: &mut Constant) -> Result<bool> {
        let (mut is, mut status) = (0, Status::default());
        // SAFETY: the request was made by MPI and is not complete; the caller holds the lock.
        let code = unsafe { (self.mpi.test)(request, &mut is, &mut status) };
        self.mpi.check("MPI_Test", code).map(|()| is != 0)
    }

    /// Gives up messages that have arrived. The caller holds the lock.
    fn progress(&self, outgoing: &mut Vec<Outgoing>) -> Result<()> {
        let mut i = 0;
        while i < outgoing.len() {
            if self.is_complete(&mut outgoing[i].request)? {
                outgoing.swap_remove(i);
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// Calls `look` until it finds something; `None` after the deadline. Messages on their way go on meanwhile.
    fn until<T>(&self, deadline: Instant, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        for looks in 0u32.. {
            let mut outgoing = self.outgoing.lock();
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            self.progress(&mut outgoing)?;
            drop(outgoing);
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

    /// The bytes of a part of a message that has come, or of none. The caller holds the lock.
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
        Ok(Some(count as usize))
    }

    /// The next part of a message; `None` after the deadline or if the rank has left.
    fn part(&self, from: usize, channel: c_int, deadline: Instant) -> Result<Part> {
        let mut request: Constant = 0;
        let found = self.until(deadline, || {
            let bytes = self.waiting(from, channel)?;
            if let Some(bytes) = bytes {
                let mut part = vec![0u8; bytes];
                // SAFETY: the buffer has room for the message that was found, and lives until the request is complete. The
                // lock is held since it was found, so that no other thread has taken it.
                let code = unsafe {
                    let at = part.as_mut_ptr().cast();
                    (self.mpi.receive)(
                        at,
                        bytes as c_int,
                        self.mpi.byte,
                        from as c_int,
                        channel,
                        self.mpi.world,
                        &mut request,
                    )
                };
                return self.mpi.check("MPI_Irecv", code).map(|()| Some(Part::Bytes(part)));
            }
            // What a rank has sent before it left comes first, and may have come just now.
            let has_left = self.waiting(from, LEAVING)?.is_some() && self.waiting(from, channel)?.is_none();
            Ok(has_left.then_some(Part::Left))
        })?;
        match found {
            Some(Part::Bytes(part)) => {
                // The buffer must not go before the request, so that this wait has no end but the job's.
                let far = Instant::now() + Duration::from_secs(1 << 30);
                self.until(far, || Ok(self.is_complete(&mut request)?.then_some(())))?;
                Ok(Part::Bytes(part))
            }
            Some(other) => Ok(other),
            None => Ok(Part::Late),
        }
    }
}

enum Part {
    Bytes(Vec<u8>),
    Left,
    Late,
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
        let mut outgoing = self.outgoing.lock();
        self.progress(&mut outgoing)?;
        for part in bytes.chunks(MOST) {
            let part: Arc<[u8]> = part.into();
            let mut request: Constant = 0;
            // SAFETY: the bytes are kept until the request is complete.
            let code = unsafe {
                let (at, count) = (part.as_ptr().cast(), part.len() as c_int);
                (self.mpi.send)(at, count, self.mpi.byte, to as c_int, channel as c_int, self.mpi.world, &mut request)
            };
            self.mpi.check("MPI_Isend", code)?;
            outgoing.push(Outgoing { request, _bytes: part });
        }
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        let mut bytes = match self.part(from, channel as c_int, deadline)? {
            Part::Bytes(bytes) => bytes,
            Part::Left => return Ok(Received::Left),
            Part::Late => return Ok(Received::Late),
        };
        let damaged = || Error::backend("mpi", format!("rank {from} sent a message that is none of isograd's"));
        let length = u64::from_le_bytes(*bytes.first_chunk::<LENGTH>().ok_or_else(damaged)?) as usize;
        while bytes.len() < LENGTH + length {
            match self.part(from, channel as c_int, deadline)? {
                Part::Bytes(more) => bytes.extend(more),
                Part::Left => return Ok(Received::Left),
                Part::Late => return Ok(Received::Late),
            }
        }
        Message::unframed(&bytes[LENGTH..]).map(Received::Message).ok_or_else(damaged)
    }

    fn leave(&self) {
        let nothing: Arc<[u8]> = [].into();
        for to in (0..self.size).filter(|to| *to != self.rank) {
            let (mut outgoing, mut request): (_, Constant) = (self.outgoing.lock(), 0);
            // SAFETY: a message of no bytes reads nothing.
            let code = unsafe {
                let at = nothing.as_ptr().cast();
                (self.mpi.send)(at, 0, self.mpi.byte, to as c_int, LEAVING, self.mpi.world, &mut request)
            };
            if code == SUCCESS {
                outgoing.push(Outgoing { request, _bytes: nothing.clone() });
            }
        }
        let mut outgoing = Vec::new();
        std::mem::swap(&mut *self.outgoing.lock(), &mut outgoing);
        let end = Instant::now() + FAREWELL;
        let _ = self.until(end, || {
            self.progress(&mut outgoing)?;
            Ok(outgoing.is_empty().then_some(()))
        });
        // What nobody takes is kept for ever: MPI may still read it.
        std::mem::forget(outgoing);
    }

    fn words(&self) -> String {
        // SAFETY: the text has room for the longest that MPI writes.
        let version = text(|at, length| unsafe { (self.mpi.version)(at, length) });
        let name = version.split([',', '\n']).next().unwrap_or_default();
        let name: Vec<&str> = name.split_whitespace().collect();
        format!("{} processes, {}", self.size, name.join(" "))
    }
}
