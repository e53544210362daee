//! Keys and values of earlier positions, for decoding.

use isograd_core::{Error, Result, Shape, Tensor, no_grad};

/// The keys and values of all layers of a language model, in memory for a fixed number of positions. It is outside of the tape.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<KeyValues>,
}

impl KvCache {
    /// An empty cache for this number of layers and positions. A layer's memory is allocated when it gets its first keys.
    pub fn new(layers: usize, capacity: usize) -> KvCache {
        KvCache { layers: (0..layers).map(|_| KeyValues::new(capacity)).collect() }
    }

    /// The number of positions that all layers have.
    pub fn len(&self) -> usize {
        self.layers.iter().map(KeyValues::len).min().unwrap_or(0)
    }

    /// True if some layer has no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of positions for which there is memory.
    pub fn capacity(&self) -> usize {
        self.layers.first().map_or(0, KeyValues::capacity)
    }

    /// Keeps the first `length` positions, or all if there are fewer. The memory stays. 0 begins new sequences.
    pub fn truncate(&mut self, length: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(length));
    }

    /// The layers, in order.
    pub fn layers_mut(&mut self) -> &mut [KeyValues] {
        &mut self.layers
    }
}

/// The keys and values of a layer: `[B, H, capacity, D]` and `[B, H, capacity, Dv]`.
#[derive(Debug)]
pub struct KeyValues {
    capacity: usize,
    length: usize,
    memory: Option<[Tensor; 2]>,
}

impl KeyValues {
    /// An empty cache for this number of positions. Its memory is allocated by the first [`append`](KeyValues::append), which decides
    /// on B, H, D, dtype and device.
    pub fn new(capacity: usize) -> KeyValues {
        KeyValues { capacity, length: 0, memory: None }
    }

    /// The number of positions.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if there are no positions.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The number of positions for which there is memory.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keeps the first `length` positions, or all if there are fewer. The memory stays.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Appends keys `[B, H, T, D]` and values `[B, H, T, Dv]`. Returns the keys and values of all positions, as views of the memory
    /// that are outside of the tape. The next call may overwrite what follows them, and after [`truncate`](KeyValues::truncate) also
    /// their own elements.
    ///
    /// Errors: `Index` if the positions exceed the capacity; `Shape`, `Dtype`, `Device` if keys or values do not fit those that are there.
    /// After an error the cache is unchanged.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<[Tensor; 2]> {
        let op = "kv_cache";
        let (&[.., tk, _], &[.., tv, _]) = (k.dims(), v.dims()) else {
            return Err(mismatch(op, k, v, "[B, H, T, D] and [B, H, T, Dv]"));
        };
        if k.rank() != 4 || v.rank() != 4 || k.dims()[..2] != v.dims()[..2] || tk != tv {
            return Err(mismatch(op, k, v, "[B, H, T, D] and [B, H, T, Dv]"));
        }
        let end = self.length.saturating_add(tk);
        if end > self.capacity {
            let message = format!("{tk} positions follow {}, and there is room for {}", self.length, self.capacity);
            return Err(Error::index(op, message));
        }
        let memory = self.memory_for(op, [k, v])?;
        no_grad(|| {
            for (whole, part) in memory.iter().zip([k, v]) {
                whole.narrow(2, self.length, tk)?.copy_(&part.detach()).map_err(|e| e.of(op))?;
            }
            memory.iter().map(|whole| whole.narrow(2, 0, end)).collect::<Result<Vec<_>>>()
        })
        .map(|views| {
            (self.memory, self.length) = (Some(memory), end);
            <[Tensor; 2]>::try_from(views).expect("two views")
        })
    }

    /// The memory. An empty cache gets another one if keys and values do not fit.
    fn memory_for(&self, op: &'static str, parts: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let shape = |part: &Tensor| Shape::from([part.dims()[0], part.dims()[1], self.capacity, part.dims()[3]]);
        if let Some(memory) = &self.memory {
            let fits = |(whole, part): (&Tensor, &Tensor)| {
                *whole.shape() == shape(part) && whole.dtype() == part.dtype() && whole.device() == part.device()
            };
            if memory.iter().zip(parts).all(fits) {
                return Ok(memory.clone());
            }
            if self.length > 0 {
                let [k, v] = memory;
                let has = format!("k {} {} and v {} {}", k.dtype(), k.shape(), v.dtype(), v.shape());
                return Err(mismatch(op, parts[0], parts[1], &format!("parts of {has} on {}", k.device().name())));
            }
        }
        let allocated = |part: &Tensor| Tensor::zeros(shape(part), part.dtype(), part.device());
        Ok([allocated(parts[0])?, allocated(parts[1])?])
    }
}

fn mismatch(op: &'static str, k: &Tensor, v: &Tensor, expected: &str) -> Error {
    let given = format!("k {} {} and v {} {}", k.dtype(), k.shape(), v.dtype(), v.shape());
    Error::shape(op, format!("{given} on {}, expected {expected}", k.device().name()))
}
