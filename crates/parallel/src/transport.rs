//! Messages between ranks: what a transport does, and the errors of ranks that are late or gone.

use isograd_core::Result;
use std::sync::Arc;
use std::time::Instant;

/// The bytes of a message. Threads of one process share them.
pub type Bytes = Arc<[u8]>;

/// A message: what its sender is doing, and the sender's part of it.
#[derive(Clone, Debug)]
pub struct Message {
    /// The sender's place in its program.
    pub head: Head,
    /// The elements of a tensor, or nothing.
    pub body: Bytes,
}

/// The place of a rank in its program: messages of one collective have equal heads, but for the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of collectives of the group before this one.
    pub number: u64,
    /// The step of the training loop.
    pub step: u64,
    /// The collective, and the dtype and shape of its operand.
    pub what: String,
}

impl Head {
    /// The head in a message's bytes.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n{}", self.number, self.step, self.what)
    }

    /// The head of [`to_text`](Head::to_text); `None` if the text is none.
    pub fn from_text(text: &str) -> Option<Head> {
        let mut lines = text.splitn(3, '\n');
        let number = lines.next()?.parse().ok()?;
        Some(Head { number, step: lines.next()?.parse().ok()?, what: lines.next()?.to_string() })
    }

    /// A message as one run of bytes: the length of the head, the head, the body.
    pub fn framed(&self, body: &[u8]) -> Vec<u8> {
        let text = self.to_text();
        let mut bytes = Vec::with_capacity(4 + text.len() + body.len());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(body);
        bytes
    }
}

impl Message {
    /// The message in the bytes of [`Head::framed`]; `None` if they are damaged.
    pub fn unframed(bytes: &[u8]) -> Option<Message> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (text, body) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Message { head: Head::from_text(std::str::from_utf8(text).ok()?)?, body: body.into() })
    }
}

/// The outcome of waiting for a message.
#[derive(Debug)]
pub enum Received {
    /// The message.
    Message(Message),
    /// The rank has left, and sends no more.
    Left,
    /// The time is over.
    Late,
}

/// The way in which messages get from rank to rank. Messages of one rank on one channel arrive in the order of sending.
pub trait Transport: Send + Sync {
    /// The rank of this process or thread, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends a message. Does not wait for the receiver.
    fn send(&self, to: usize, channel: u32, message: Message) -> Result<()>;

    /// The next message of a rank on a channel.
    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received>;

    /// Tells the other ranks that this one sends no more. Does not wait.
    fn leave(&self);

    /// Waits until the other ranks have left too, where they need this one until then. Returns those that have not at the deadline.
    fn wait_for_others(&self, _deadline: Instant) -> Vec<usize> {
        Vec::new()
    }

    /// The transport in words, such as `4 threads`.
    fn words(&self) -> String;

    /// True if all ranks are threads of one process.
    fn is_of_threads(&self) -> bool {
        false
    }
}
