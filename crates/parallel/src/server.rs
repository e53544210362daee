//! A store of keys and values that rank 0 serves, where the launcher has none: it answers what [`Store`](crate::store::Store) asks.

use crate::store::{
    CHECK, DELETE, ENTER, GET, GREETING, MAGIC, READY, SET, Secret, Store, Timed, VALIDATE, bytes, value,
};
use crate::transport::{Message, Received, Transport};
use isograd_core::{Error, Result, replace_private_file};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The answer to `CHECK` if a key is not there.
const NOT_READY: u8 = 1;
/// Connections that have not entered yet, of which the oldest is closed for a new one.
const STRANGERS: usize = 16;
/// Bytes of the longest secret and the longest key, and the number of keys of a query.
const LONGEST: u64 = 1024;
/// The pause after a connection that could not be accepted or served.
const PAUSE: Duration = Duration::from_millis(50);

/// The connections of a rank.
#[derive(Clone, Copy, Default)]
struct Seen {
    open: usize,
    closed: usize,
}

struct Shared {
    secret: String,
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// By rank.
    ranks: Mutex<Vec<Seen>>,
    strangers: Mutex<VecDeque<Arc<TcpStream>>>,
}

/// The transport of rank 0, which serves the store and is a client of it.
pub struct Hosted {
    store: Store,
    shared: Arc<Shared>,
    /// The file of the secret, which goes with the store.
    file: Option<PathBuf>,
}

impl Hosted {
    /// Serves a store at an address of this host to the ranks that know the secret, and connects to it. A secret in a file is drawn. Errors:
    /// `Io` if the port is taken, or the file cannot be written.
    pub fn start(at: SocketAddr, size: usize, prefix: String, secret: &Secret, timeout: Duration) -> Result<Hosted> {
        let failed = |e| Error::io(at.to_string().as_ref(), "serving the store", e);
        let listener = TcpListener::bind(at).map_err(failed)?;
        let (text, file) = match secret {
            Secret::None => (String::new(), None),
            Secret::Text(text) => (text.clone(), None),
            Secret::File(path) => {
                let text = drawn();
                replace_private_file(path, &[text.as_bytes()])?;
                (text, Some(path.clone()))
            }
        };
        let (secret, ranks) = (Secret::Text(text.clone()), Mutex::new(vec![Seen::default(); size]));
        let shared = Arc::new(Shared { secret: text, values: Mutex::default(), ranks, strangers: Mutex::default() });
        let mut own = listener.local_addr().map_err(failed)?;
        if own.ip().is_unspecified() {
            own.set_ip(IpAddr::from([127, 0, 0, 1]));
        }
        let of_server = shared.clone();
        let serve = move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => of_server.admit(Arc::new(stream)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        thread::Builder::new().name("isograd-server".to_string()).spawn(serve).map_err(failed)?;
        let store = Store::connect(&own.to_string(), [0, size], prefix, &secret, timeout)?;
        Ok(Hosted { store, shared, file })
    }
}

/// A text of 128 random bits.
fn drawn() -> String {
    // The keys of a hash map are the system's random numbers.
    [RandomState::new(), RandomState::new()].map(|keys| format!("{:016x}", keys.hash_one(0))).concat()
}

impl Shared {
    /// Serves a connection on a thread of its own.
    fn admit(self: &Arc<Self>, stream: Arc<TcpStream>) {
        let mut strangers = self.strangers.lock();
        strangers.push_back(stream.clone());
        if strangers.len() > STRANGERS
            && let Some(oldest) = strangers.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        drop(strangers);
        let (shared, of_thread) = (self.clone(), stream.clone());
        let client = thread::Builder::new().name("isograd-store".to_string());
        // A client that goes away ends its thread.
        if client.spawn(move || shared.serve(&of_thread)).is_err() {
            self.forget(&stream);
            thread::sleep(PAUSE);
        }
    }

    fn forget(&self, stream: &Arc<TcpStream>) {
        self.strangers.lock().retain(|other| !Arc::ptr_eq(other, stream));
    }

    fn serve(&self, stream: &Arc<TcpStream>) {
        let rank = self.enter(stream);
        self.forget(stream);
        let Ok(rank) = rank else { return };
        self.ranks.lock()[rank].open += 1;
        let _ = answer(stream, rank, &self.values);
        let mut ranks = self.ranks.lock();
        (ranks[rank].open, ranks[rank].closed) = (ranks[rank].open - 1, ranks[rank].closed + 1);
    }

    /// The rank of a client that greets and knows the secret.
    fn enter(&self, stream: &TcpStream) -> io::Result<usize> {
        stream.set_nodelay(true)?;
        let mut from = Timed { stream, deadline: Instant::now() + GREETING };
        let is_known =
            bytes(&mut from)? == [VALIDATE] && bytes(&mut from)? == MAGIC.to_ne_bytes() && bytes(&mut from)? == [ENTER];
        if !is_known {
            return Err(ErrorKind::InvalidData.into());
        }
        let rank = u32::from_ne_bytes(bytes(&mut from)?) as usize;
        let secret = value(&mut from, LONGEST)?;
        match is_equal(&secret, self.secret.as_bytes()) && rank < self.ranks.lock().len() {
            true => Ok(rank),
            false => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    /// True if a rank needs the store no more.
    fn is_gone(&self, rank: usize, left: &str) -> bool {
        let Seen { open, closed } = self.ranks.lock()[rank];
        self.values.lock().contains_key(left.as_bytes()) || (open == 0 && closed > 0)
    }
}

/// Compares in a time that says nothing about the place of a difference.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Answers the queries of a rank until it goes away.
fn answer(stream: &TcpStream, rank: usize, values: &Mutex<HashMap<Vec<u8>, Vec<u8>>>) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    let (mut from, mut to) = (BufReader::new(stream), stream);
    to.write_all(&(rank as u32).to_ne_bytes())?;
    loop {
        match u8::from_ne_bytes(bytes(&mut from)?) {
            SET => {
                let key = value(&mut from, LONGEST)?;
                let value = value(&mut from, u64::MAX)?;
                values.lock().insert(key, value);
            }
            GET => {
                let key = value(&mut from, LONGEST)?;
                // Clients ask for keys that are there.
                let value = values.lock().get(&key).cloned().unwrap_or_default();
                to.write_all(&[&(value.len() as u64).to_ne_bytes()[..], &value].concat())?;
            }
            CHECK => {
                let count = u64::from_ne_bytes(bytes(&mut from)?).min(LONGEST);
                let keys = (0..count).map(|_| value(&mut from, LONGEST)).collect::<io::Result<Vec<_>>>()?;
                let values = values.lock();
                let is_ready = keys.iter().all(|key| values.contains_key(key));
                drop(values);
                to.write_all(&[if is_ready { READY } else { NOT_READY }])?;
            }
            DELETE => {
                let key = value(&mut from, LONGEST)?;
                let count = u64::from(values.lock().remove(&key).is_some());
                to.write_all(&count.to_ne_bytes())?;
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
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

    fn leave(&self) {
        self.store.leave();
    }

    fn wait_for_others(&self, deadline: Instant) -> Vec<usize> {
        loop {
            let is_here = |rank: &usize| !self.shared.is_gone(*rank, &self.store.left(*rank));
            let here: Vec<usize> = (1..self.size()).filter(is_here).collect();
            if here.is_empty() || Instant::now() > deadline {
                return here;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn words(&self) -> String {
        self.store.words()
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The folder of temporary files is emptied by the system.
            let _ = std::fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Head;
    use std::io::Read;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn hosted(secret: &Secret) -> (Hosted, SocketAddr) {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        (Hosted::start(at, 2, "run".into(), secret, TIMEOUT).unwrap(), at)
    }

    fn text() -> Secret {
        Secret::Text("only of this run".into())
    }

    fn rank_1(at: SocketAddr, secret: &Secret) -> Store {
        Store::connect(&at.to_string(), [1, 2], "run".into(), secret, TIMEOUT).unwrap()
    }

    fn message() -> Message {
        Message { head: Head { number: 0, step: 0, what: "all_reduce".into() }, body: [7; 9].into() }
    }

    /// The answer to bytes of a stranger: nothing, and the end of the connection.
    fn is_shut_out(at: SocketAddr, bytes: &[u8]) -> bool {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(TIMEOUT / 2)).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => answer.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn a_stranger_cannot_put_a_message_into_the_store() {
        let (hosted, at) = hosted(&text());
        let counted = |bytes: &[u8]| [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat();
        let set = [&[SET][..], &counted(b"run/1/0/2/0"), &counted(&message().head.framed(&[1; 9]))].concat();
        let hello = [&[VALIDATE][..], &MAGIC.to_ne_bytes()].concat();
        let guess = [&[ENTER][..], &1u32.to_ne_bytes(), &counted(b"a guess")].concat();
        let large = [&[ENTER][..], &1u32.to_ne_bytes(), &u64::MAX.to_ne_bytes()].concat();
        for greeting in [&[][..], &hello, &[&hello[..], &guess].concat(), &[&hello[..], &large].concat()] {
            assert!(is_shut_out(at, &[greeting, &set].concat()));
        }
        assert!(hosted.shared.values.lock().is_empty());
        // The true rank is served, and no stranger keeps the server waiting.
        let rank_1 = rank_1(at, &text());
        rank_1.send(0, 2, message()).unwrap();
        let found = hosted.receive(1, 2, Instant::now() + TIMEOUT).unwrap();
        assert!(matches!(found, Received::Message(message) if message.body[..] == [7; 9]));
        let _silent = TcpStream::connect(at).unwrap();
        rank_1.leave();
        hosted.leave();
        assert_eq!(hosted.wait_for_others(Instant::now() + TIMEOUT), [0usize; 0]);
    }

    #[test]
    fn connections_of_strangers_do_not_shut_a_rank_out() {
        let (hosted, at) = hosted(&text());
        let strangers: Vec<TcpStream> = (0..8 * STRANGERS).map(|_| TcpStream::connect(at).unwrap()).collect();
        rank_1(at, &text()).send(0, 2, message()).unwrap();
        assert!(matches!(hosted.receive(1, 2, Instant::now() + TIMEOUT).unwrap(), Received::Message(_)));
        assert!(hosted.shared.strangers.lock().len() <= STRANGERS);
        drop(strangers);
    }

    #[test]
    fn a_rank_that_is_silent_at_the_end_is_named_and_one_that_is_gone_is_not() {
        let (hosted, at) = hosted(&text());
        let rank_1 = rank_1(at, &text());
        assert_eq!(hosted.wait_for_others(Instant::now() + Duration::from_millis(50)), [1]);
        // Killed: the connection is closed without a farewell.
        drop(rank_1);
        assert_eq!(hosted.wait_for_others(Instant::now() + TIMEOUT), [0usize; 0]);
    }

    #[test]
    fn a_secret_in_a_file_is_drawn_and_removed() {
        let path = std::env::temp_dir().join(format!("isograd-test-{}.secret", std::process::id()));
        // That of an earlier run.
        std::fs::write(&path, "old").unwrap();
        let secret = Secret::File(path.clone());
        let (hosted, at) = hosted(&secret);
        rank_1(at, &secret).send(0, 2, message()).unwrap();
        assert!(matches!(hosted.receive(1, 2, Instant::now() + TIMEOUT).unwrap(), Received::Message(_)));
        drop(hosted);
        assert!(!path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_is_no_file_of_this_user_is_refused() {
        use std::os::unix::fs::{chown, symlink};
        let folder = std::env::temp_dir().join(format!("isograd-test-{}-secrets", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [pipe, link, of_other] = ["pipe", "link", "other"].map(|name| folder.join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::write(&of_other, "a guess").unwrap();
        symlink(&of_other, &link).unwrap();
        // Only root can give a file away, and others have some files of root's.
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(&of_other, Some(1), None).unwrap();
        }
        let of_other = if is_root { of_other } else { "/etc/hostname".into() };
        for path in [&pipe, &link, &of_other] {
            let started = Instant::now();
            let secret = Secret::File(path.clone());
            let error = Store::connect("127.0.0.1:1", [1, 2], "run".into(), &secret, TIMEOUT).err().unwrap();
            assert_eq!(error.kind(), isograd_core::Kind::Format, "{error}");
            assert!(error.message().contains("is not a file of this user"), "{error}");
            assert!(started.elapsed() < TIMEOUT);
        }
        // Rank 0 puts a file in place of a pipe.
        let (hosted, at) = hosted(&Secret::File(pipe.clone()));
        rank_1(at, &Secret::File(pipe)).send(0, 2, message()).unwrap();
        assert!(matches!(hosted.receive(1, 2, Instant::now() + TIMEOUT).unwrap(), Received::Message(_)));
        drop(hosted);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The processor time of this process, in hundredths of a second.
    #[cfg(target_os = "linux")]
    fn ticks(stat: &mut std::fs::File) -> u64 {
        use std::io::{Seek, SeekFrom};
        let mut text = String::new();
        stat.seek(SeekFrom::Start(0)).unwrap();
        stat.read_to_string(&mut text).unwrap();
        let fields = text.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// Runs in a process of its own, which may open few files.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_server_that_cannot_accept_pauses_and_then_goes_on() {
        const CHILD: &str = "ISOGRAD_TEST_FEW_FILES";
        if std::env::var_os(CHILD).is_none() {
            let own = std::env::current_exe().unwrap();
            let name = "server::tests::a_server_that_cannot_accept_pauses_and_then_goes_on";
            let mut command = std::process::Command::new("sh");
            command.args(["-c", r#"ulimit -n 64 && exec "$0" "$@""#]).arg(own).args(["--exact", name]).env(CHILD, "1");
            let ended = command.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (hosted, at) = hosted(&text());
        let mut stat = std::fs::File::open("/proc/self/stat").unwrap();
        let mut files: Vec<std::fs::File> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!((8..64).contains(&files.len()));
        // One for the client, and none for the server's end of the connection.
        drop(files.pop());
        let _client = TcpStream::connect(at).unwrap();
        assert!(std::fs::File::open("/dev/null").is_err());
        let before = ticks(&mut stat);
        thread::sleep(Duration::from_secs(1));
        let spent = ticks(&mut stat) - before;
        assert!(spent < 10, "{spent} hundredths of a second");
        drop(files);
        rank_1(at, &text()).send(0, 2, message()).unwrap();
        assert!(matches!(hosted.receive(1, 2, Instant::now() + TIMEOUT).unwrap(), Received::Message(_)));
    }
}
