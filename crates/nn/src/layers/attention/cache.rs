//! Keys and values of earlier positions, for decoding.

use isograd_core::ops::attention::write_positions;
use isograd_core::{DType, Device, Error, Result, Shape, Tensor, is_in_step, no_grad};

/// Positions by which the memory of a cache grows, at least.
const BLOCK: usize = 256;
const OP: &str = "kv_cache";

/// The keys and values of all layers of a language model, for sequences that may have several lengths. It is outside of the tape.
///
/// Memory is allocated for 256 positions of each sequence first. When these are full, memory for twice as many replaces it, and the keys and values
/// are copied, up to the capacity; [`reserve`](KvCache::reserve) does so beforehand. The positions of sequences are also on the device, so that a
/// captured step can append: there, the cache neither grows nor counts. [`reserve`](KvCache::reserve) room before the step is captured, and
/// [`advance`](KvCache::advance) after each run.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<KeyValues>,
    capacity: usize,
    /// Positions for which layers have memory.
    room: usize,
    /// The number of positions of each sequence.
    lengths: Vec<usize>,
    /// The same on the device, i64 `[B]`.
    positions: Option<Tensor>,
}

impl KvCache {
    /// An empty cache for this number of layers and positions. The first tokens decide on the number of sequences and on the device.
    pub fn new(layers: usize, capacity: usize) -> KvCache {
        let layers = (0..layers).map(|_| KeyValues::default()).collect();
        KvCache { layers, capacity, room: 0, lengths: Vec::new(), positions: None }
    }

    /// The number of positions of the longest sequence.
    pub fn len(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// True if no sequence has positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of positions of each sequence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The largest number of positions.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of positions for which there is memory.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Keeps the first `length` positions of each sequence, or all if there are fewer. The memory stays. 0 begins new sequences.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        let lengths: Vec<usize> = self.lengths.iter().map(|&n| n.min(length)).collect();
        self.set_lengths(lengths)
    }

    /// [`truncate`](KvCache::truncate) with a length for each sequence. Tokens that fill up shorter sequences of a batch are forgotten by it.
    /// Errors: `Shape` for another number of sequences.
    pub fn truncate_each(&mut self, lengths: &[usize]) -> Result<()> {
        if lengths.len() != self.lengths.len() {
            let message = format!("{} lengths for {} sequences", lengths.len(), self.lengths.len());
            return Err(Error::shape(OP, message));
        }
        self.set_lengths(self.lengths.iter().zip(lengths).map(|(&n, &length)| n.min(length)).collect())
    }

    /// Puts the sequences of these numbers in the place of all, each as often as it is named: a search goes on with its best sequences. Steps that were
    /// captured before must be captured again. Errors: `Index` for a sequence that there is not; `OutOfMemory`.
    pub fn select(&mut self, sequences: &[usize]) -> Result<()> {
        let Some(positions) = &self.positions else {
            return Err(Error::value(OP, "there are no sequences"));
        };
        if let Some(wrong) = sequences.iter().find(|&&i| i >= self.lengths.len()) {
            return Err(Error::index(
                OP,
                format!("there is no sequence {wrong}, expected one in 0..{}", self.lengths.len()),
            ));
        }
        let rows: Vec<i64> = sequences.iter().map(|&i| i as i64).collect();
        let rows = Tensor::from_slice(&rows, rows.len(), positions.device())?;
        let chosen = positions.detach().index_select(0, &rows)?;
        self.positions = Some(chosen);
        no_grad(|| self.layers.iter_mut().try_for_each(|layer| layer.select(&rows)))?;
        self.lengths = sequences.iter().map(|&i| self.lengths[i]).collect();
        Ok(())
    }

    /// Puts the sequences of another cache of the same model behind its own. Steps that were captured before must be captured again. Errors: `Shape` for
    /// another number of layers; `Index` for sequences beyond the capacity; as for concatenation; `OutOfMemory`.
    pub fn join(&mut self, mut other: KvCache) -> Result<()> {
        if self.layers.len() != other.layers.len() {
            return Err(Error::shape(OP, format!("{} layers, expected {}", other.layers.len(), self.layers.len())));
        }
        if other.len() > self.capacity {
            let message = format!("a sequence has {} positions, and there is room for {}", other.len(), self.capacity);
            return Err(Error::index(OP, message));
        }
        let (Some(own), Some(others)) = (&self.positions, &other.positions) else {
            if self.positions.is_none() {
                *self = KvCache { capacity: self.capacity, ..other };
            }
            return Ok(());
        };
        let positions = Tensor::concat(&[own, others], 0)?;
        let room = self.room.max(other.room);
        for cache in [&mut *self, &mut other] {
            let kept = cache.len();
            if cache.room < room {
                cache.layers.iter_mut().try_for_each(|layer| layer.grow(room, kept))?;
                cache.room = room;
            }
        }
        let mut joined = Vec::new();
        for (layer, other) in self.layers.iter().zip(&other.layers) {
            joined.push(no_grad(|| layer.joined(other))?);
        }
        self.layers = joined;
        self.positions = Some(positions);
        self.lengths.append(&mut other.lengths);
        Ok(())
    }

    fn set_lengths(&mut self, lengths: Vec<usize>) -> Result<()> {
        if let Some(positions) = self.positions.as_ref().filter(|_| lengths != self.lengths) {
            let values: Vec<i64> = lengths.iter().map(|&n| n as i64).collect();
            positions.copy_(&Tensor::from_slice(&values, values.len(), positions.device())?)?;
        }
        self.lengths = lengths;
        Ok(())
    }

    /// Makes room for `count` more positions of each sequence. True if memory has moved: steps that were captured before it must be captured
    /// again. Errors: `Index` beyond the capacity; `OutOfMemory`.
    pub fn reserve(&mut self, count: usize) -> Result<bool> {
        let needed = self.len().saturating_add(count);
        if needed > self.capacity {
            let message = format!("{count} positions follow {}, and there is room for {}", self.len(), self.capacity);
            return Err(Error::index(OP, message));
        }
        if needed <= self.room {
            return Ok(false);
        }
        let room = needed.next_multiple_of(BLOCK).max(2 * self.room).min(self.capacity);
        let kept = self.len();
        self.layers.iter_mut().try_for_each(|layer| layer.grow(room, kept))?;
        self.room = room;
        Ok(true)
    }

    /// Counts `count` positions of each sequence, which a captured step has appended.
    pub fn advance(&mut self, count: usize) {
        self.lengths.iter_mut().for_each(|length| *length += count);
    }

    /// Begins to append `[B, T]` tokens, whose keys and values each layer then gets. Errors: `Shape` for another number of sequences than those
    /// that have positions; `Index` beyond the capacity; `Value` in a captured step if there is no room.
    pub fn begin(&mut self, [b, t]: [usize; 2], device: &Device) -> Result<NewPositions> {
        if is_in_step() && (self.positions.is_none() || self.lengths.len() != b || self.len() + t > self.room) {
            return Err(Error::value(
                OP,
                format!("a captured step needs room for {t} positions of {b} sequences before it begins"),
            ));
        }
        if self.lengths.len() != b && !self.is_empty() {
            let message = format!("tokens of {b} sequences, expected {}, which have positions", self.lengths.len());
            return Err(Error::shape(OP, message));
        }
        let is_alike =
            self.positions.as_ref().is_some_and(|positions| positions.dims() == [b] && positions.device() == device);
        if !is_alike {
            self.positions = Some(Tensor::zeros(b, DType::I64, device)?);
            self.lengths = vec![0; b];
        }
        let is_first = self.is_empty() && !is_in_step();
        if !is_in_step() {
            self.reserve(t)?;
        }
        let before = self.positions.clone().ok_or_else(|| Error::value(OP, "there are no positions"))?;
        no_grad(|| {
            let positions = match t {
                1 => before.unsqueeze(1)?,
                _ => before.unsqueeze(1)?.add(&Tensor::arange(t, device)?)?,
            };
            let lengths = if is_first { None } else { Some(before.add_scalar(t as i64)?) };
            // A captured step does not know how far its runs have come.
            let extent = if is_in_step() { self.room } else { self.len() + t };
            Ok(NewPositions { positions, lengths, count: t, room: self.room, extent })
        })
    }

    /// Layer `i`, for tokens that were begun.
    pub fn layer<'a>(&'a mut self, i: usize, new: &'a NewPositions) -> CacheLayer<'a> {
        CacheLayer { memory: &mut self.layers[i], new }
    }

    /// Ends what [`begin`](KvCache::begin) began. Without it, the cache has the positions that it had.
    pub fn finish(&mut self, new: NewPositions) -> Result<()> {
        if let Some(positions) = &self.positions {
            no_grad(|| {
                let lengths = new.lengths.map_or_else(|| positions.add_scalar(new.count as i64), Ok)?;
                positions.copy_(&lengths)
            })?;
        }
        if !is_in_step() {
            self.advance(new.count);
        }
        Ok(())
    }
}

/// The positions of tokens that a cache gets.
#[derive(Debug)]
pub struct NewPositions {
    /// `[B, T]` (i64): the position of each token.
    pub positions: Tensor,
    /// The number of keys of each sequence with the tokens, `[B]` (i64); none if the tokens are the first of all sequences.
    pub lengths: Option<Tensor>,
    count: usize,
    room: usize,
    extent: usize,
}

/// A layer of a cache, for tokens that it gets.
#[derive(Debug)]
pub struct CacheLayer<'a> {
    memory: &'a mut KeyValues,
    new: &'a NewPositions,
}

impl CacheLayer<'_> {
    /// The positions of the tokens.
    pub fn new_positions(&self) -> &NewPositions {
        self.new
    }

    /// Writes keys `[B, H, T, D]` and values `[B, H, T, Dv]` of the tokens. Returns the keys and values of all positions, as views of the memory
    /// that are outside of the tape. The first of each sequence are [valid](NewPositions::lengths). Later calls overwrite what follows them.
    ///
    /// Errors: `Shape`, `Dtype`, `Device` if keys or values do not fit the tokens and those that are there.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<[Tensor; 2]> {
        let (b, t) = (self.new.positions.dims()[0], self.new.count);
        let fits = |x: &Tensor| x.rank() == 4 && x.dims()[0] == b && x.dims()[2] == t;
        if !fits(k) || !fits(v) || k.dims()[1] != v.dims()[1] {
            return Err(mismatch(k, v, &format!("[{b}, H, {t}, D] and [{b}, H, {t}, Dv]")));
        }
        let memory = self.memory.of([k, v], self.new.room, self.new.lengths.is_none())?;
        no_grad(|| {
            for (whole, part) in memory.iter().zip([k, v]) {
                match self.new.lengths {
                    None => whole.narrow(2, 0, t)?.copy_(&part.detach()).map_err(|e| e.of(OP))?,
                    Some(_) => write_positions(OP, whole, &self.new.positions, &part.detach())?,
                }
            }
            Ok([memory[0].narrow(2, 0, self.new.extent)?, memory[1].narrow(2, 0, self.new.extent)?])
        })
    }
}

/// The keys and values of a layer: `[B, H, room, D]` and `[B, H, room, Dv]`.
#[derive(Debug, Default)]
struct KeyValues {
    memory: Option<[Tensor; 2]>,
}

impl KeyValues {
    /// Memory for more positions, with the first `kept` of those that are there.
    fn grow(&mut self, room: usize, kept: usize) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let grown = |whole: &Tensor| {
            let dims = whole.dims();
            let more = Tensor::zeros([dims[0], dims[1], room, dims[3]], whole.dtype(), whole.device())?;
            if kept > 0 {
                no_grad(|| more.narrow(2, 0, kept)?.copy_(&whole.narrow(2, 0, kept)?))?;
            }
            Ok(more)
        };
        self.memory = Some([grown(&memory[0])?, grown(&memory[1])?]);
        Ok(())
    }

    /// The sequences of these numbers.
    fn select(&mut self, rows: &Tensor) -> Result<()> {
        let Some([k, v]) = &self.memory else { return Ok(()) };
        self.memory = Some([k.index_select(0, rows)?, v.index_select(0, rows)?]);
        Ok(())
    }

    /// With the sequences of another one, which has as much room.
    fn joined(&self, other: &KeyValues) -> Result<KeyValues> {
        let memory = match (&self.memory, &other.memory) {
            (Some([k, v]), Some([others_k, others_v])) => {
                Some([Tensor::concat(&[k, others_k], 0)?, Tensor::concat(&[v, others_v], 0)?])
            }
            (None, None) => None,
            _ => return Err(Error::shape(OP, "a layer has keys in one cache, and none in the other")),
        };
        Ok(KeyValues { memory })
    }

    /// The memory. First keys and values get another one if they do not fit.
    fn of(&mut self, parts: [&Tensor; 2], room: usize, is_first: bool) -> Result<[Tensor; 2]> {
        let shape = |part: &Tensor| Shape::from([part.dims()[0], part.dims()[1], room, part.dims()[3]]);
        if let Some(memory) = &self.memory {
            let fits = |(whole, part): (&Tensor, &Tensor)| {
                *whole.shape() == shape(part) && whole.dtype() == part.dtype() && whole.device() == part.device()
            };
            if memory.iter().zip(parts).all(fits) {
                return Ok(memory.clone());
            }
            if !is_first {
                let [k, v] = memory;
                let has = format!("k {} {} and v {} {}", k.dtype(), k.shape(), v.dtype(), v.shape());
                return Err(mismatch(parts[0], parts[1], &format!("parts of {has} on {}", k.device().name())));
            }
        }
        let allocated = |part: &Tensor| Tensor::zeros(shape(part), part.dtype(), part.device());
        let memory = [allocated(parts[0])?, allocated(parts[1])?];
        self.memory = Some(memory.clone());
        Ok(memory)
    }
}

fn mismatch(k: &Tensor, v: &Tensor, expected: &str) -> Error {
    let given = format!("k {} {} and v {} {}", k.dtype(), k.shape(), v.dtype(), v.shape());
    Error::shape(OP, format!("{given} on {}, expected {expected}", k.device().name()))
}
