//! A matrix of quantised numbers on a device.

use super::BlockFormat;
use crate::{DType, Device, Error, Result, Tensor};

/// The name of the constructors in errors.
const OP: &str = "quantized_weight";

/// A matrix `[rows, columns]` of quantised numbers, in blocks along its rows: the weight `[out, in]` of a linear layer, or a table of embeddings. Clones
/// share the memory.
///
/// ```
/// # use isograd_core::quantized::{BlockFormat, QuantizedWeight};
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # fn example(device: &Device) -> Result<()> {
/// let w = Tensor::ones((64, 256), DType::F32, device)?;
/// let packed = QuantizedWeight::quantize(&w, BlockFormat::Q4K)?;
/// // 4.5 bits for each number.
/// assert_eq!(packed.bytes().dims(), [64, 144]);
/// let x = Tensor::ones((2, 256), DType::F32, device)?;
/// assert_eq!(x.quantized_linear(&packed, None)?.dims(), [2, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct QuantizedWeight {
    format: BlockFormat,
    bytes: Tensor,
    columns: usize,
}

impl QuantizedWeight {
    /// The matrix `[rows, columns]` whose blocks are `bytes`, u8 `[rows, bytes of a row]`. Errors: `Dtype` unless these are u8; `Shape` unless `columns`
    /// are whole blocks, and `bytes` a matrix with as many bytes in a row as their blocks have.
    pub fn new(format: BlockFormat, bytes: &Tensor, columns: usize) -> Result<QuantizedWeight> {
        if bytes.dtype() != DType::U8 {
            return Err(Error::dtype(OP, format!("the blocks are {}, expected u8", bytes.dtype())));
        }
        let row = row_bytes(format, columns)
            .map_err(|e| Error::shape(OP, format!("{}: the blocks are {}", e.message(), bytes.shape())))?;
        if bytes.rank() != 2 || bytes.dims()[1] != row {
            let message = format!(
                "the blocks are {}, expected [rows, {row}]: {columns} columns of {format}, {} bytes for {} elements",
                bytes.shape(),
                format.bytes(),
                format.elements()
            );
            return Err(Error::shape(OP, message));
        }
        Ok(QuantizedWeight { format, bytes: bytes.detach().contiguous()?, columns })
    }

    /// The matrix of these extents whose blocks are `bytes`, row by row. Errors: `Shape` unless rows are whole blocks, and there are as many bytes as
    /// blocks of them have; `OutOfMemory`.
    pub fn from_bytes(
        format: BlockFormat,
        bytes: &[u8],
        [rows, columns]: [usize; 2],
        device: &Device,
    ) -> Result<QuantizedWeight> {
        let row = row_bytes(format, columns)?;
        if rows.checked_mul(row) != Some(bytes.len()) {
            let message =
                format!("[{rows}, {columns}] of {format} has {rows} rows of {row} bytes, got {}", bytes.len());
            return Err(Error::shape(OP, message));
        }
        QuantizedWeight::new(format, &Tensor::from_bytes(bytes, (rows, row), DType::U8, device)?, columns)
    }

    /// The blocks of a matrix of floats, computed on the host. Errors: `Shape` unless it is a matrix whose rows are whole blocks; `Unsupported` for a
    /// format that is not [written](BlockFormat::is_written); `Dtype` for integers; `Value` for NaN, infinities, and numbers whose scale f16 does not have.
    pub fn quantize(w: &Tensor, format: BlockFormat) -> Result<QuantizedWeight> {
        crate::check::check_float(OP, w)?;
        let [rows, columns] = w.dims() else {
            return Err(Error::shape(OP, format!("the weight is {}, expected [rows, columns]", w.shape())));
        };
        row_bytes(format, *columns)?;
        let values = w.detach().cast(DType::F32)?.to_vec::<f32>()?;
        QuantizedWeight::from_bytes(format, &format.quantise(OP, &values)?, [*rows, *columns], w.device())
    }

    /// The format of its blocks.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// The extents of the matrix of numbers, `[rows, columns]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.bytes.dims()[0], self.columns]
    }

    /// The blocks, u8 `[rows, bytes of a row]`, contiguous.
    pub fn bytes(&self) -> &Tensor {
        &self.bytes
    }

    /// The device of the blocks.
    pub fn device(&self) -> &Device {
        self.bytes.device()
    }

    /// The same blocks on another device. Errors: `OutOfMemory`.
    pub fn to_device(&self, device: &Device) -> Result<QuantizedWeight> {
        Ok(QuantizedWeight { bytes: self.bytes.to_device(device)?, ..self.clone() })
    }

    /// Rows `start` to `start + count`, which share the memory. Errors: `Attr` for rows out of range.
    pub fn narrow(&self, start: usize, count: usize) -> Result<QuantizedWeight> {
        Ok(QuantizedWeight { bytes: self.bytes.narrow(0, start, count)?, ..self.clone() })
    }

    /// Rows by number, `[L]`, in their order. Errors: those of [`Tensor::index_select`].
    pub fn select(&self, rows: &Tensor) -> Result<QuantizedWeight> {
        Ok(QuantizedWeight { bytes: self.bytes.index_select(0, rows)?, ..self.clone() })
    }
}

fn row_bytes(format: BlockFormat, columns: usize) -> Result<usize> {
    format.row_bytes(columns).ok_or_else(|| {
        let message =
            format!("{columns} columns are no whole blocks of {format}, which have {} elements", format.elements());
        Error::shape(OP, message)
    })
}
