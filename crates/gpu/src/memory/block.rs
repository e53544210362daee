//! The memory of tensors. That of a step that is being recorded has a place only when the whole step is known.

use crate::driver::Address;
use crate::memory::pool::{Buffer, Pool};
use isograd_core::{Error, Memory, Result};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// The memory of a tensor.
pub struct Block {
    pool: Arc<Pool>,
    pub bytes: usize,
    home: Home,
}

enum Home {
    Own(Buffer),
    Later(Arc<Later>),
    Lent(Lent),
}

/// A place in memory that another owns.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    pub address: Address,
    /// The start of the allocation around it.
    pub allocation: Address,
}

/// Memory of a recorded step: it gets its place at the end of the recording.
pub struct Later {
    /// Counts the memory of its program.
    pub number: usize,
    pub bytes: usize,
    place: OnceLock<Placed>,
}

enum Placed {
    Own(Buffer),
    Lent(Lent),
}

/// Identifies memory while a step is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Memory from outside of the step, by the start of its buffer.
    At(Address),
    /// Memory of the step, by its number.
    Later(usize),
}

impl Later {
    /// Memory without a place.
    pub fn new(number: usize, bytes: usize) -> Arc<Later> {
        Arc::new(Later { number, bytes, place: OnceLock::new() })
    }

    /// Gives it a buffer of its own.
    pub fn own(&self, buffer: Buffer) {
        let _ = self.place.set(Placed::Own(buffer));
    }

    /// Gives it a place in memory that lives longer.
    pub fn lend(&self, lent: Lent) {
        let _ = self.place.set(Placed::Lent(lent));
    }

    fn lent(&self) -> Option<Lent> {
        self.place.get().map(|place| match place {
            Placed::Own(buffer) => Lent { address: buffer.address, allocation: buffer.address },
            Placed::Lent(lent) => *lent,
        })
    }
}

impl Block {
    /// Memory that is a buffer.
    pub fn own(pool: &Arc<Pool>, buffer: Buffer) -> Block {
        Block { pool: pool.clone(), bytes: buffer.bytes, home: Home::Own(buffer) }
    }

    /// Memory of a step.
    pub fn later(pool: &Arc<Pool>, later: Arc<Later>) -> Block {
        Block { pool: pool.clone(), bytes: later.bytes, home: Home::Later(later) }
    }

    /// Memory that another owns, which begins its allocation.
    pub fn at(pool: &Arc<Pool>, address: Address) -> Block {
        Block { pool: pool.clone(), bytes: 0, home: Home::Lent(Lent { address, allocation: address }) }
    }

    /// Whether a pool has the memory.
    pub fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// The name of the memory within a step that is being recorded. `own` is the memory that the step has asked for.
    pub fn place(&self, own: &[Arc<Later>]) -> Result<Place> {
        if let Home::Later(later) = &self.home
            && own.get(later.number).is_some_and(|known| Arc::ptr_eq(known, later))
        {
            return Ok(Place::Later(later.number));
        }
        self.address().map(Place::At)
    }

    /// Where it is.
    #[inline]
    pub fn address(&self) -> Result<Address> {
        self.lent().map(|lent| lent.address).ok_or_else(unplaced)
    }

    /// Where the allocation begins in which it lies.
    pub fn allocation(&self) -> Result<Address> {
        self.lent().map(|lent| lent.allocation).ok_or_else(unplaced)
    }

    #[inline]
    fn lent(&self) -> Option<Lent> {
        match &self.home {
            Home::Own(buffer) => Some(Lent { address: buffer.address, allocation: buffer.address }),
            Home::Later(later) => later.lent(),
            Home::Lent(lent) => Some(*lent),
        }
    }
}

fn unplaced() -> Error {
    Error::value("capture", "a tensor of a captured step is used elsewhere while the step is recorded")
}

impl Memory for Block {
    fn as_any(&self) -> &dyn Any {
        self
    }
}
