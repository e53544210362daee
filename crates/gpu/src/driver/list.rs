//! Recordings of a runtime that has none: the list of what was enqueued.

use crate::driver::{Address, Arg, Driver, Geometry, Handle};
use isograd_core::{Error, Result};
use parking_lot::Mutex;

/// Enqueued work.
pub enum Work {
    /// A call of [`Driver::launch`].
    Launch {
        /// The entry.
        entry: Handle,
        /// Groups and threads.
        geometry: Geometry,
        /// The arguments.
        arguments: Vec<Value>,
        /// Allocations that are reached through pointers in memory.
        reached: Vec<Address>,
    },
    /// A call of [`Driver::upload`].
    Upload(Address, Vec<u8>),
    /// A call of [`Driver::copy`]: from, to and bytes.
    Copy(Address, Address, usize),
    /// A call of [`Driver::fill`]: the place, the byte and how many.
    Fill(Address, u8, usize),
}

/// An argument that outlives its launch.
pub enum Value {
    /// A place in device memory.
    Pointer(Address),
    /// A value, byte by byte.
    Bytes(Vec<u8>),
}

impl Work {
    /// A launch.
    pub fn launch(entry: &Handle, geometry: Geometry, arguments: &[Arg<'_>], reached: &[Address]) -> Work {
        let value = |argument: &Arg<'_>| match argument {
            Arg::Pointer(address) => Value::Pointer(*address),
            Arg::Value(bytes) => Value::Bytes(bytes.to_vec()),
        };
        let arguments = arguments.iter().map(value).collect();
        Work::Launch { entry: entry.clone(), geometry, arguments, reached: reached.to_vec() }
    }

    fn enqueue(&self, driver: &dyn Driver) -> Result<()> {
        match self {
            Work::Launch { entry, geometry, arguments, reached } => {
                let argument = |value| match value {
                    &Value::Pointer(address) => Arg::Pointer(address),
                    Value::Bytes(bytes) => Arg::Value(bytes),
                };
                driver.launch(entry, *geometry, &arguments.iter().map(argument).collect::<Vec<_>>(), reached)
            }
            Work::Upload(to, bytes) => driver.upload(*to, bytes),
            Work::Copy(from, to, bytes) => driver.copy(*from, *to, *bytes),
            Work::Fill(at, byte, bytes) => driver.fill(*at, *byte, *bytes),
        }
    }
}

/// The list that is being made, if any.
#[derive(Default)]
pub struct List(Mutex<Option<Vec<Work>>>);

impl List {
    /// As [`Driver::begin_capture`].
    pub fn begin(&self) {
        *self.0.lock() = Some(Vec::new());
    }

    /// As [`Driver::end_capture`].
    pub fn end(&self) -> Result<Handle> {
        self.0.lock().take().map(Handle::new).ok_or_else(|| Error::backend("capture", "nothing is recorded"))
    }

    /// Adds work; false if nothing is recorded.
    pub fn add(&self, work: impl FnOnce() -> Work) -> bool {
        self.0.lock().as_mut().map(|list| list.push(work())).is_some()
    }

    /// As [`Driver::replay`], by a driver that records nothing now.
    pub fn replay(graph: &Handle, driver: &dyn Driver) -> Result<()> {
        graph.get::<Vec<Work>>().iter().try_for_each(|work| work.enqueue(driver))
    }
}
