//! A server of keys and values as a transport: that of `torchrun`, or that of rank 0.
//!
//! Of its protocol, this is used: a query is a byte, then its arguments; a text or value is its length in 8 bytes, then its bytes;
//! numbers are in the machine's order.

use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
#[cfg(unix)]
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first query of a connection: the number that follows shows that the client speaks this protocol.
pub const VALIDATE: u8 = 0;
pub const SET: u8 = 1;
pub const GET: u8 = 3;
pub const CHECK: u8 = 5;
pub const DELETE: u8 = 8;
pub const PING: u8 = 13;
/// The second query to the store of rank 0, which PyTorch's does not have: the rank in 4 bytes, and the secret of the run.
pub const ENTER: u8 = 101;
/// The number of `VALIDATE`.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The answer to `CHECK` if all keys are there.
pub const READY: u8 = 0;

/// The time to connect, for which the server may not be up yet.
const CONNECTING: Duration = Duration::from_secs(60);
/// The time for a greeting and its answer.
pub const GREETING: Duration = Duration::from_secs(10);
/// The time that an answer may take beyond the deadline of a message.
const GRACE: Duration = Duration::from_secs(1);
/// The longest sleep between two questions for a message.
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// Questions for a message before the first question whether the rank has left.
const PATIENCE: u32 = 64;

/// The text by which a store knows the ranks of its run.
#[derive(Clone, Debug, PartialEq)]
pub enum Secret {
    /// None: PyTorch's store believes everyone.
    None,
    Text(String),
    /// A file that its owner alone may read, which rank 0 writes.
    File(PathBuf),
}

impl Secret {
    fn text(&self) -> io::Result<Option<String>> {
        match self {
            Secret::None => Ok(None),
            Secret::Text(text) => Ok(Some(text.clone())),
            Secret::File(path) => own_text(path).map(Some),
        }
    }
}

/// The text of a file of this user's. The folder of temporary files is everyone's. Errors: `InvalidData` for another user's file, and for what is
/// no file, such as a pipe, which might wait for ever.
#[cfg(unix)]
fn own_text(path: &Path) -> io::Result<String> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let check = |about: Metadata| match about.is_file() && about.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(()),
        false => {
            let message = format!("the secret of the ranks, {}, is not a file of this user", path.display());
            Err(io::Error::new(ErrorKind::InvalidData, message))
        }
    };
    check(std::fs::symlink_metadata(path)?)?;
    // Another file may have come in its place.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check(file.metadata()?)?;
    io::read_to_string(file)
}

#[cfg(not(unix))]
fn own_text(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// A connection whose reads and writes end at a deadline.
pub struct Timed<'a> {
    pub stream: &'a TcpStream,
    pub deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(late()),
            left => Ok(Some(left)),
        }
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the time is over")
}

/// The error of a socket's timeout, which has several names.
fn named(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { late() } else { error }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes).map_err(named)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client of the store, for one rank.
pub struct Store {
    rank: usize,
    size: usize,
    prefix: String,
    /// The time that the server may take for an answer.
    timeout: Duration,
    connection: Mutex<Connection>,
}

struct Connection {
    /// None once a query has failed: its answer may still come.
    stream: Option<TcpStream>,
    /// The number of messages sent to, and received from, a rank on a channel.
    sent: HashMap<(usize, u32), u64>,
    received: HashMap<(usize, u32), u64>,
}

impl Store {
    /// Connects to the store at an address such as `host:29500`. `prefix` tells apart runs that use one store. `timeout` is the time that the
    /// server may take for an answer. Errors: `Io`; `Format` if the server is no such store, or the secret no file of this user.
    pub fn connect(
        address: &str,
        [rank, size]: [usize; 2],
        prefix: String,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Store> {
        let end = Instant::now() + CONNECTING;
        let stream = loop {
            let error = match greeted(address, rank, secret, end) {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            if error.kind() == ErrorKind::InvalidData {
                return Err(Error::format(address.to_string(), error.to_string()));
            }
            if Instant::now() > end {
                return Err(Error::io(address.as_ref(), "connecting to the store", error));
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let connection = Connection { stream: Some(stream), sent: HashMap::new(), received: HashMap::new() };
        Ok(Store { rank, size, prefix, timeout, connection: Mutex::new(connection) })
    }

    fn key(&self, from: usize, to: usize, channel: u32, number: u64) -> String {
        format!("{}/{from}/{to}/{channel}/{number}", self.prefix)
    }

    /// The key that a rank sets when it leaves.
    pub fn left(&self, rank: usize) -> String {
        format!("{}/left/{rank}", self.prefix)
    }

    /// Queries by a deadline; `None` if another thread has the connection until then.
    fn ask<T>(
        &self,
        deadline: Instant,
        f: impl FnOnce(&mut Connection, &mut Timed<'_>) -> io::Result<T>,
    ) -> Result<Option<T>> {
        let Some(mut connection) = self.connection.try_lock_until(deadline) else { return Ok(None) };
        let lost = || Error::backend("store", "the connection to the store of the ranks was lost before");
        let stream = connection.stream.take().ok_or_else(lost)?;
        let found = f(&mut connection, &mut Timed { stream: &stream, deadline }).map_err(failed)?;
        connection.stream = Some(stream);
        Ok(Some(found))
    }

    /// Takes a message out of the store, if it has come.
    fn take(&self, from: usize, channel: u32, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let taken = self.ask(deadline, |connection, server| {
            let number = connection.received.get(&(from, channel)).copied().unwrap_or(0);
            let key = self.key(from, self.rank, channel, number);
            if !has(server, &key)? {
                return Ok(None);
            }
            let value = get(server, &key)?;
            delete(server, &key)?;
            connection.received.insert((from, channel), number + 1);
            Ok(Some(value))
        });
        Ok(taken?.flatten())
    }
}

/// A connection to the store, which has answered the greeting. The error `InvalidData` is that of another server.
fn greeted(address: &str, rank: usize, secret: &Secret, end: Instant) -> io::Result<TcpStream> {
    let rank = (rank as u32).to_ne_bytes();
    let hello = [&[VALIDATE][..], &MAGIC.to_ne_bytes()].concat();
    let greeting = match secret.text()? {
        None => [&hello[..], &[PING], &rank].concat(),
        Some(text) => [&hello[..], &[ENTER], &rank, &counted(text.as_bytes())].concat(),
    };
    let stream = connected(address, end)?;
    stream.set_nodelay(true)?;
    let mut server = Timed { stream: &stream, deadline: Instant::now() + GREETING };
    server.write_all(&greeting)?;
    match bytes::<4>(&mut server) {
        Ok(answer) if answer == rank => Ok(stream),
        // A server of another run, or one that is full: it may be another's turn soon.
        Err(error) if *secret != Secret::None => Err(error),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "the server does not answer as a store of ranks does")),
    }
}

fn connected(address: &str, end: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A text or value as the protocol writes it.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat()
}

pub fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map(|()| bytes)
}

/// A text or value after its length, of at most `limit` bytes.
pub fn value(from: &mut impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let length = u64::from_ne_bytes(bytes(from)?);
    if length > limit {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a value of {length} bytes, expected {limit}")));
    }
    let mut value = Vec::new();
    // The room grows with what comes, and not with what was said.
    match from.take(length).read_to_end(&mut value)? as u64 == length {
        true => Ok(value),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn set(server: &mut Timed<'_>, key: &str, value: &[u8]) -> io::Result<()> {
    server.write_all(&[&[SET][..], &counted(key.as_bytes()), &counted(value)].concat())
}

/// True if there is such a key.
fn has(server: &mut Timed<'_>, key: &str) -> io::Result<bool> {
    server.write_all(&[&[CHECK][..], &1u64.to_ne_bytes(), &counted(key.as_bytes())].concat())?;
    Ok(bytes::<1>(server)?[0] == READY)
}

/// The value of a key that is there.
fn get(server: &mut Timed<'_>, key: &str) -> io::Result<Vec<u8>> {
    server.write_all(&[&[GET][..], &counted(key.as_bytes())].concat())?;
    value(server, u64::MAX)
}

fn delete(server: &mut Timed<'_>, key: &str) -> io::Result<()> {
    server.write_all(&[&[DELETE][..], &counted(key.as_bytes())].concat())?;
    // The number of deleted keys.
    bytes::<8>(server).map(drop)
}

fn failed(error: io::Error) -> Error {
    Error::backend("store", format!("the store of the ranks does not answer: {error}")).with_source(error)
}

impl Transport for Store {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, channel: u32, message: Message) -> Result<()> {
        let sent = self.ask(Instant::now() + self.timeout, |connection, server| {
            let number = connection.sent.entry((to, channel)).or_default();
            *number += 1;
            let key = self.key(self.rank, to, channel, *number - 1);
            set(server, &key, &message.head.framed(&message.body))
        });
        sent?.ok_or_else(|| failed(late()))
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        let (mut nap, mut questions) = (Duration::from_micros(20), 0u32);
        loop {
            questions += 1;
            let by = deadline.max(Instant::now()) + GRACE;
            // A rank's messages come before its farewell.
            let has_left = questions.is_multiple_of(PATIENCE)
                && self.ask(by, |_, server| has(server, &self.left(from)))?.unwrap_or(false);
            if let Some(bytes) = self.take(from, channel, by)? {
                let message = Message::unframed(&bytes);
                let damaged =
                    || Error::backend("store", format!("rank {from} sent a message that is none of isograd's"));
                return message.map(Received::Message).ok_or_else(damaged);
            }
            if has_left {
                return Ok(Received::Left);
            }
            if Instant::now() > deadline {
                return Ok(Received::Late);
            }
            std::thread::sleep(nap);
            nap = LONGEST_NAP.min(nap * 2);
        }
    }

    fn leave(&self) {
        // A server that is gone needs no farewell.
        let _ = self.ask(Instant::now() + GRACE, |_, server| set(server, &self.left(self.rank), &[]));
    }

    fn words(&self) -> String {
        format!("{} processes, a store", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers the greeting, and then runs `f`.
    fn server(f: impl FnOnce(TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let greeting = bytes::<10>(&mut stream).unwrap();
            stream.write_all(&greeting[6..]).unwrap();
            f(stream);
        });
        address
    }

    fn store(address: &str) -> Store {
        Store::connect(address, [0, 2], "run".into(), &Secret::None, Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_server_that_says_nothing_more_is_an_error_at_the_deadline() {
        let (keep, kept) = std::sync::mpsc::channel::<()>();
        let store = store(&server(move |_stream| assert!(kept.recv().is_err())));
        let start = Instant::now();
        let error = store.receive(1, 2, start + Duration::from_millis(200)).unwrap_err();
        assert!(error.message().contains("does not answer: the time is over"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        // The answer to the lost question could be taken for that of the next.
        assert!(store.receive(1, 2, Instant::now()).unwrap_err().message().contains("was lost before"));
        drop(keep);
    }

    #[test]
    fn a_length_is_not_believed_before_the_bytes_have_come() {
        let address = server(|mut stream| {
            let (said, key) = (1u64 << 46, "run/1/0/2/0");
            let check = bytes::<17>(&mut stream).unwrap();
            assert_eq!(check[0], CHECK);
            let mut rest = vec![0; key.len()];
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(&[READY]).unwrap();
            stream.read_exact(&mut [0; 9]).unwrap();
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(&said.to_ne_bytes()).unwrap();
        });
        let error = store(&address).receive(1, 2, Instant::now() + Duration::from_secs(5)).unwrap_err();
        assert!(error.message().contains("does not answer: unexpected end of file"), "{error}");
    }
}
