//! The memory of tensors. That of a step that is being recorded has a place only when the whole step is known.

use crate::driver::Address;
use crate::memory::pool::{Adopted, Buffer, Pool};
use isograd_core::{Error, Foreign, Memory, Result};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;

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
    Adopted(Arc<Adopted>),
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
    place: Mutex<Option<Placed>>,
    /// The buffer of a result that has left, to which the recording writes.
    left: Mutex<Option<Buffer>>,
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
        Arc::new(Later { number, bytes, place: Mutex::default(), left: Mutex::default() })
    }

    /// Gives it a buffer of its own.
    pub fn own(&self, buffer: Buffer) {
        self.place.lock().get_or_insert(Placed::Own(buffer));
    }

    /// Gives it a place in memory that lives longer.
    pub fn lend(&self, lent: Lent) {
        self.place.lock().get_or_insert(Placed::Lent(lent));
    }

    /// Moves a result to a buffer of its own, where those who have it find it. Its recording goes on writing to the old one. No thread
    /// may be about to use its address.
    pub fn leave(&self, pool: &Arc<Pool>) -> Result<()> {
        let (mut place, mut left) = (self.place.lock(), self.left.lock());
        let Some(Placed::Own(old)) = &*place else { return Ok(()) };
        if left.is_some() {
            return Ok(());
        }
        let new = pool.take(self.bytes)?;
        // Not every driver copies nothing.
        if self.bytes > 0 {
            pool.driver.copy(old.address, new.address, self.bytes)?;
        }
        if let Some(Placed::Own(old)) = place.replace(Placed::Own(new)) {
            *left = Some(old);
        }
        Ok(())
    }

    /// The memory that a result has left, for the next replay.
    pub fn taken_back(&self) -> Option<Arc<Later>> {
        let later = Later::new(self.number, self.bytes);
        later.own(self.left.lock().take()?);
        Some(later)
    }

    fn lent(&self) -> Option<Lent> {
        self.place.lock().as_ref().map(|place| match place {
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

    /// Memory of another library.
    pub fn adopt(pool: &Arc<Pool>, foreign: Foreign) -> Block {
        Block { pool: pool.clone(), bytes: foreign.bytes(), home: Home::Adopted(pool.adopt(foreign)) }
    }

    /// Memory that another owns, which begins its allocation.
    pub fn at(pool: &Arc<Pool>, address: Address) -> Block {
        Block { pool: pool.clone(), bytes: 0, home: Home::Lent(Lent { address, allocation: address }) }
    }

    /// The memory of a step, if the block has such.
    pub fn of_step(&self) -> Option<&Arc<Later>> {
        if let Home::Later(later) = &self.home { Some(later) } else { None }
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
            Home::Adopted(adopted) => Some(Lent { address: adopted.address(), allocation: adopted.address() }),
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
