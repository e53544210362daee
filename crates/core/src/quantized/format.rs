//! The formats of blocks: a row for each.

use super::{blocks, quantise};
use crate::{DType, Error, Result, bf16, f16, host};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// More blocks are converted by several threads.
const SERIAL: usize = 1 << 13;

/// Blocks that are dequantised before they are converted.
const AT_ONCE: usize = 16;

/// The whole blocks of numbers.
type Quantise = fn(&[f32], &mut [u8]);

macro_rules! formats {
    ($($format:ident $name:literal $elements:literal $bytes:literal $dequantise:ident $(<- $quantise:ident)?;)*) => {
        /// A format of blocks of quantised numbers. Numbers are computed in f32, one rounding after the other, and have the same bits on every
        /// device. ggml, "Tensor Encoding Schemes"; Open Compute Project, "Microscaling Formats"; NF4: Dettmers et al. 2023, arXiv 2305.14314, in blocks
        /// of 64 behind their scale in f32.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum BlockFormat {
            $($format),*
        }

        impl BlockFormat {
            /// All formats.
            pub const ALL: &[BlockFormat] = &[$(BlockFormat::$format),*];

            /// The name that ggml has for it, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(BlockFormat::$format => $name,)*
                }
            }

            /// The elements of a block.
            pub const fn elements(self) -> usize {
                match self {
                    $(BlockFormat::$format => $elements,)*
                }
            }

            /// The bytes of a block.
            pub const fn bytes(self) -> usize {
                match self {
                    $(BlockFormat::$format => $bytes,)*
                }
            }

            /// Writes the numbers of whole blocks. It is inlined, so that it is compiled for the vectors of its caller.
            #[inline(always)]
            pub fn dequantise(self, bytes: &[u8], values: &mut [f32]) {
                match self {
                    $(BlockFormat::$format => {
                        let blocks = bytes.as_chunks::<$bytes>().0.iter();
                        let each = blocks.zip(values.as_chunks_mut::<$elements>().0);
                        each.for_each(|(block, values)| blocks::$dequantise(block, values));
                    })*
                }
            }

            /// The function that writes blocks, where numbers are quantised in this format.
            fn quantiser(self) -> Option<Quantise> {
                match self {
                    $(BlockFormat::$format => {
                        let found: &[Quantise] = &[$(|values, bytes| {
                            let blocks = values.as_chunks::<$elements>().0.iter();
                            let each = blocks.zip(bytes.as_chunks_mut::<$bytes>().0);
                            each.for_each(|(values, block)| *block = quantise::$quantise(values));
                        })?];
                        found.first().copied()
                    })*
                }
            }
        }
    };
}

formats! {
    Q4_0 "Q4_0" 32 18 q4_0 <- q4_0;
    Q4_1 "Q4_1" 32 20 q4_1;
    Q5_0 "Q5_0" 32 22 q5_0;
    Q5_1 "Q5_1" 32 24 q5_1;
    Q8_0 "Q8_0" 32 34 q8_0 <- q8_0;
    Q2K "Q2_K" 256 84 q2_k;
    Q3K "Q3_K" 256 110 q3_k;
    Q4K "Q4_K" 256 144 q4_k <- q4_k;
    Q5K "Q5_K" 256 176 q5_k;
    Q6K "Q6_K" 256 210 q6_k <- q6_k;
    Iq4Nl "IQ4_NL" 32 18 iq4_nl;
    Iq4Xs "IQ4_XS" 256 136 iq4_xs;
    Mxfp4 "MXFP4" 32 17 mxfp4;
    Nf4 "NF4" 64 36 nf4 <- nf4;
}

impl BlockFormat {
    /// True for a format in which numbers can be quantised: Q4_0, Q8_0, Q4_K, Q6_K and NF4.
    pub fn is_written(self) -> bool {
        self.quantiser().is_some()
    }

    /// The bytes of a row of so many elements; `None` unless these are whole blocks.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        elements.is_multiple_of(self.elements()).then(|| elements / self.elements() * self.bytes())
    }

    /// The numbers of whole blocks in a dtype of floats, rounded once, as bytes in the machine's order. Errors: `Dtype` for another dtype;
    /// `OutOfMemory`; both of `op`.
    pub fn numbers(self, op: &'static str, bytes: &[u8], dtype: DType) -> Result<Vec<u8>> {
        match dtype {
            DType::F32 => self.converted(op, bytes, f32::to_ne_bytes),
            DType::F64 => self.converted(op, bytes, |x| f64::from(x).to_ne_bytes()),
            DType::F16 => self.converted(op, bytes, |x| f16::from_f32(x).to_ne_bytes()),
            DType::BF16 => self.converted(op, bytes, |x| bf16::from_f32(x).to_ne_bytes()),
            _ => Err(Error::dtype(op, format!("{self} has quantised floats, expected a dtype of floats, got {dtype}"))),
        }
    }

    /// The numbers of whole blocks, each converted to `N` bytes.
    fn converted<const N: usize>(
        self,
        op: &'static str,
        packed: &[u8],
        convert: impl Fn(f32) -> [u8; N] + Sync,
    ) -> Result<Vec<u8>> {
        let (elements, bytes) = (self.elements(), self.bytes());
        let mut converted = host::repeated(op, 0u8, packed.len() / bytes * elements * N)?;
        in_parts(packed, bytes, &mut converted, elements * N, |packed, converted| {
            let mut values = vec![0.0; AT_ONCE * elements];
            let parts = packed.chunks(AT_ONCE * bytes).zip(converted.chunks_mut(AT_ONCE * elements * N));
            for (packed, converted) in parts {
                let values = &mut values[..converted.len() / N];
                self.dequantise(packed, values);
                values.iter().zip(converted.as_chunks_mut().0).for_each(|(&x, bytes)| *bytes = convert(x));
            }
        });
        Ok(converted)
    }

    /// The blocks of numbers, of which there are as many as whole blocks have. Errors, of `op`: `Unsupported` for a format that is not
    /// [written](BlockFormat::is_written); `Value` for NaN and infinities, and for numbers so large that f16 does not have their scale; `OutOfMemory`.
    pub fn quantise(self, op: &'static str, values: &[f32]) -> Result<Vec<u8>> {
        let (elements, bytes) = (self.elements(), self.bytes());
        let quantise = self
            .quantiser()
            .ok_or_else(|| Error::unsupported(op, format!("tensors of the type {self} are not written")))?;
        if let Some(x) = values.iter().find(|x| !x.is_finite()) {
            return Err(Error::value(op, format!("it has {x}, which {self} does not have")));
        }
        let mut blocks = host::repeated(op, 0, values.len() / elements * bytes)?;
        in_parts(values, elements, &mut blocks, bytes, quantise);
        let mut numbers = vec![0.0; elements];
        for (block, values) in blocks.chunks(bytes).zip(values.chunks(elements)) {
            self.dequantise(block, &mut numbers);
            if numbers.iter().any(|x| !x.is_finite()) {
                let peak = values.iter().fold(0f32, |peak, x| peak.max(x.abs()));
                let message = format!("it has numbers up to {peak}, whose scale in {self} is too large for f16");
                return Err(Error::value(op, message));
            }
        }
        Ok(blocks)
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Calls a function with all blocks of two slices, which have `a` and `b` items each: in one part, or in as many as there are processors, which
/// this thread shares with those that can be started.
fn in_parts<A: Sync, B: Send>(from: &[A], a: usize, to: &mut [B], b: usize, part: impl Fn(&[A], &mut [B]) + Sync) {
    let blocks = from.len() / a;
    if blocks <= SERIAL {
        return part(from, to);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = blocks.div_ceil(threads);
    let parts = Mutex::new(from.chunks(each * a).zip(to.chunks_mut(each * b)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((from, to)) = next() {
            part(from, to);
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
}
