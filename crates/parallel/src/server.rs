//! A store of keys and values that rank 0 serves, where the launcher has none: it answers what [`Store`](crate::store::Store) asks.

use crate::store::{CHECK, DELETE, GET, MAGIC, PING, READY, SET, Store, VALIDATE};
use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The answer to `CHECK` if a key is not there.
const NOT_READY: u8 = 1;
/// The time that the server waits at its end for the other ranks.
const FAREWELL: Duration = Duration::from_secs(30);

/// The values, and the number of connections.
#[derive(Default)]
struct Shared {
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    open: AtomicUsize,
}

/// The transport of rank 0, which serves the store and is a client of it.
pub struct Hosted {
    store: Store,
    shared: Arc<Shared>,
}

impl Hosted {
    /// Serves a store at a port of this host, and connects to it. Errors: `Io` if the port is taken.
    pub fn start(port: u16, size: usize, prefix: String) -> Result<Hosted> {
        let failed = |e| Error::io(format!("port {port}").as_ref(), "serving the store", e);
        let listener = TcpListener::bind(("0.0.0.0", port)).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let of_server = shared.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let shared = of_server.clone();
                shared.open.fetch_add(1, Ordering::AcqRel);
                let client = thread::Builder::new().name("isograd-store".to_string());
                let started = client.spawn(move || {
                    // A client that goes away ends its thread.
                    let _ = answer(&stream, &shared.values);
                    shared.open.fetch_sub(1, Ordering::AcqRel);
                });
                if started.is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("isograd-server".to_string()).spawn(serve).map_err(failed)?;
        Ok(Hosted { store: Store::connect(&format!("127.0.0.1:{port}"), 0, size, prefix)?, shared })
    }
}

/// Answers the queries of a client until it goes away.
fn answer(stream: &TcpStream, values: &Mutex<HashMap<Vec<u8>, Vec<u8>>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = (BufReader::new(stream), stream);
    loop {
        match u8::from_ne_bytes(bytes(&mut from)?) {
            VALIDATE => {
                if u32::from_ne_bytes(bytes(&mut from)?) != MAGIC {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            PING => to.write_all(&bytes::<4>(&mut from)?)?,
            SET => {
                let key = counted(&mut from)?;
                let value = counted(&mut from)?;
                values.lock().insert(key, value);
            }
            GET => {
                let key = counted(&mut from)?;
                // Clients ask for keys that are there.
                let value = values.lock().get(&key).cloned().unwrap_or_default();
                to.write_all(&[&(value.len() as u64).to_ne_bytes()[..], &value].concat())?;
            }
            CHECK => {
                let count = u64::from_ne_bytes(bytes(&mut from)?);
                let keys = (0..count).map(|_| counted(&mut from)).collect::<io::Result<Vec<_>>>()?;
                let values = values.lock();
                let is_ready = keys.iter().all(|key| values.contains_key(key));
                drop(values);
                to.write_all(&[if is_ready { READY } else { NOT_READY }])?;
            }
            DELETE => {
                let key = counted(&mut from)?;
                let count = u64::from(values.lock().remove(&key).is_some());
                to.write_all(&count.to_ne_bytes())?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map(|()| bytes)
}

/// A text or value after its length.
fn counted(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = u64::from_ne_bytes(bytes(from)?);
    let mut value = Vec::new();
    // The room grows with what comes, and not with what was said.
    if from.take(length).read_to_end(&mut value)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(value)
}

impl Transport for Hosted {
    fn rank(&self) -> usize {
        self.store.rank()
    }

    fn size(&self) -> usize {
        self.store.size()
    }

    fn send(&self, to: usize, channel: u32, message: Message) -> Result<()> {
        self.store.send(to, channel, message)
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        self.store.receive(from, channel, deadline)
    }

    /// Waits until the others have gone, who still need the store.
    fn leave(&self) {
        self.store.leave();
        let end = Instant::now() + FAREWELL;
        while self.shared.open.load(Ordering::Acquire) > 1 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn words(&self) -> String {
        self.store.words()
    }
}
