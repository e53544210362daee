//! A server of keys and values as a transport: that of `torchrun`, or that of rank 0.
//!
//! Of its protocol, this is used: a query is a byte, then its arguments; a text or value is its length in 8 bytes, then its bytes;
//! numbers are in the machine's order.

use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The first query of a connection: the number that follows shows that the client speaks this protocol.
pub const VALIDATE: u8 = 0;
pub const SET: u8 = 1;
pub const GET: u8 = 3;
pub const CHECK: u8 = 5;
pub const DELETE: u8 = 8;
pub const PING: u8 = 13;
/// The number of `VALIDATE`.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The answer to `CHECK` if all keys are there.
pub const READY: u8 = 0;

/// The time to connect, for which the server may not be up yet.
const CONNECTING: Duration = Duration::from_secs(60);
/// The longest sleep between two questions for a message.
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// Questions for a message before the first question whether the rank has left.
const PATIENCE: u32 = 64;

/// A client of the store, for one rank.
pub struct Store {
    rank: usize,
    size: usize,
    prefix: String,
    connection: Mutex<Connection>,
}

struct Connection {
    stream: TcpStream,
    /// The number of messages sent to, and received from, a rank on a channel.
    sent: HashMap<(usize, u32), u64>,
    received: HashMap<(usize, u32), u64>,
}

impl Store {
    /// Connects to the store at an address such as `host:29500`. `prefix` tells apart runs that use one store. Errors: `Io`; `Format` if
    /// the server is none of PyTorch's.
    pub fn connect(address: &str, rank: usize, size: usize, prefix: String) -> Result<Store> {
        let failed = |e| Error::io(address.as_ref(), "connecting to the store", e);
        let end = Instant::now() + CONNECTING;
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => return Err(failed(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        stream.set_nodelay(true).map_err(failed)?;
        let mut connection = Connection { stream, sent: HashMap::new(), received: HashMap::new() };
        let greeting = [&[VALIDATE][..], &MAGIC.to_ne_bytes(), &[PING], &(rank as u32).to_ne_bytes()].concat();
        connection.stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
        let answer = connection.ask(&greeting).and_then(|()| connection.bytes::<4>());
        match answer {
            Ok(answer) if u32::from_ne_bytes(answer) == rank as u32 => {}
            _ => return Err(Error::format(address.to_string(), "the server does not answer as PyTorch's store does")),
        }
        connection.stream.set_read_timeout(None).map_err(failed)?;
        Ok(Store { rank, size, prefix, connection: Mutex::new(connection) })
    }

    fn key(&self, from: usize, to: usize, channel: u32, number: u64) -> String {
        format!("{}/{from}/{to}/{channel}/{number}", self.prefix)
    }

    fn left(&self, rank: usize) -> String {
        format!("{}/left/{rank}", self.prefix)
    }

    /// Takes a message out of the store, if it has come.
    fn take(&self, from: usize, channel: u32) -> io::Result<Option<Vec<u8>>> {
        let mut connection = self.connection.lock();
        let number = connection.received.get(&(from, channel)).copied().unwrap_or(0);
        let key = self.key(from, self.rank, channel, number);
        if !connection.has(&key)? {
            return Ok(None);
        }
        let value = connection.get(&key)?;
        connection.delete(&key)?;
        connection.received.insert((from, channel), number + 1);
        Ok(Some(value))
    }
}

/// A text or value as the protocol writes it.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat()
}

impl Connection {
    fn ask(&mut self, query: &[u8]) -> io::Result<()> {
        self.stream.write_all(query)
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map(|()| bytes)
    }

    fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.ask(&[&[SET][..], &counted(key.as_bytes()), &counted(value)].concat())
    }

    /// True if there is such a key.
    fn has(&mut self, key: &str) -> io::Result<bool> {
        self.ask(&[&[CHECK][..], &1u64.to_ne_bytes(), &counted(key.as_bytes())].concat())?;
        Ok(self.bytes::<1>()?[0] == READY)
    }

    /// The value of a key that is there.
    fn get(&mut self, key: &str) -> io::Result<Vec<u8>> {
        self.ask(&[&[GET][..], &counted(key.as_bytes())].concat())?;
        let length = u64::from_ne_bytes(self.bytes()?) as usize;
        let mut value = Vec::new();
        let room = value.try_reserve_exact(length);
        room.map_err(|_| io::Error::new(io::ErrorKind::OutOfMemory, format!("a value has {length} bytes")))?;
        value.resize(length, 0);
        self.stream.read_exact(&mut value).map(|()| value)
    }

    fn delete(&mut self, key: &str) -> io::Result<()> {
        self.ask(&[&[DELETE][..], &counted(key.as_bytes())].concat())?;
        // The number of deleted keys.
        self.bytes::<8>().map(drop)
    }
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
        let mut connection = self.connection.lock();
        let number = connection.sent.entry((to, channel)).or_default();
        *number += 1;
        let key = self.key(self.rank, to, channel, *number - 1);
        connection.set(&key, &message.head.framed(&message.body)).map_err(failed)
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        let (mut nap, mut questions) = (Duration::from_micros(20), 0u32);
        loop {
            questions += 1;
            // What a rank has sent before it left comes first.
            let has_left =
                questions.is_multiple_of(PATIENCE) && self.connection.lock().has(&self.left(from)).map_err(failed)?;
            if let Some(bytes) = self.take(from, channel).map_err(failed)? {
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
        let _ = self.connection.lock().set(&self.left(self.rank), &[]);
    }

    fn words(&self) -> String {
        format!("{} processes, a store", self.size)
    }
}
