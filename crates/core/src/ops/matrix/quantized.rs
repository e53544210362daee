//! Numbers of quantised weights, and products with them. The gradients are those of the other factor: a quantised weight is a constant.

use crate::check::{check_device, check_float, check_same};
use crate::fused::{Fused, Sum, has_kernel, has_kernel_for, has_room, run_fused};
use crate::operands;
use crate::operands::{Input, Output};
use crate::ops::gradients;
use crate::quantized::{BlockFormat, QuantizedWeight};
use crate::tape::{Record, Saved, report};
use crate::{DType, Dims, Error, Result, Shape, Tensor, autocast, no_autocast};

/// Numbers of a weight that are dequantised at once, where a product takes no blocks. Larger weights are multiplied in parts.
const AT_ONCE: usize = 1 << 26;

/// The numbers `[rows, columns]` of blocks, u8 `[rows, bytes of a row]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dequantize(pub BlockFormat);

impl Fused for Dequantize {
    type Inputs<T> = Input<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "dequantize"
    }

    /// On the host: no ops of tensors take bits.
    fn composite(&self, Input { x }: Input<&Tensor>, Output { y }: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        let numbers = self.0.numbers("dequantize", &x.read()?, y.dtype())?;
        Ok(Output { y: Some(Tensor::from_bytes(&numbers, y.shape().clone(), y.dtype(), x.device())?) })
    }
}

/// `x w^T + bias` of few rows x, by blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedLinear {
    /// The format of the weight.
    pub format: BlockFormat,
    /// The rows of x.
    pub rows: usize,
}

operands! {
    /// The inputs of [`QuantizedLinear`].
    pub struct QuantizedInputs {
        /// `[rows, in]`.
        x,
        /// The blocks, u8 `[out, bytes of a row]`.
        weight,
        /// `[out]`.
        bias?,
    }
}

impl QuantizedLinear {
    fn of(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, is_size: bool) -> Result<Tensor> {
        let weight = QuantizedWeight::new(self.format, weight, x.dims()[1])?.dequantize(x.dtype())?;
        let weight = if is_size { weight.abs()? } else { weight };
        x.linear(&weight, bias)
    }
}

impl Fused for QuantizedLinear {
    type Inputs<T> = QuantizedInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "quantized_linear"
    }

    fn composite(
        &self,
        QuantizedInputs { x, weight, bias }: QuantizedInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.of(x, weight, bias, false)?) })
    }

    fn companions(
        &self,
        QuantizedInputs { x, weight, bias }: QuantizedInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Option<Output<Tensor>>> {
        let bias = bias.map(Tensor::abs).transpose()?;
        Ok(Some(Output { y: self.of(&x.abs()?, weight, bias.as_ref(), true)? }))
    }

    fn sum(&self) -> Sum {
        Sum::Product
    }
}

impl QuantizedWeight {
    /// The numbers `[rows, columns]` in a dtype of floats, each rounded once, with the same bits on every device. Errors: `Dtype` for another dtype;
    /// `OutOfMemory`.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        let op = "dequantize";
        if !dtype.is_float() {
            return Err(Error::dtype(op, format!("{dtype} was given, expected a float dtype")));
        }
        let (bytes, [rows, columns]) = (self.bytes(), self.dims());
        let y = Tensor::allocate(op, &Shape::from([rows, columns]), dtype, bytes.device())?;
        if y.numel() == 0 {
            return Ok(y);
        }
        let (kernel, inputs, outputs) = (Dequantize(self.format()), Input { x: bytes }, Output { y: &y });
        if has_kernel_for::<Dequantize>(bytes, dtype) {
            run_fused(op, &kernel, inputs, outputs)?;
            report(op, &[bytes], &[&y], || []);
            return Ok(y);
        }
        Ok(kernel.composite(inputs, outputs)?.y.unwrap_or(y))
    }

    /// The numbers `[.., columns]` of the rows that an index `[..]` names, in a dtype of floats: an embedding. Errors: `Dtype`; `Index` for an index
    /// outside of the rows.
    pub fn embedding(&self, index: &Tensor, dtype: DType) -> Result<Tensor> {
        let rows = self.select(&index.flatten(0, -1)?)?.dequantize(dtype)?;
        rows.reshape(Shape::from([index.dims(), &[self.dims()[1]]].concat()))
    }
}

/// # Quantised weights
impl Tensor {
    /// `x w^T + bias` for `x: [.., in]`, a quantised weight `[out, in]` and `bias: [out]`. Float dtypes; sums are in f32, and rounded once. Few rows of x are
    /// multiplied with the blocks themselves. For more of them a GPU dequantises the weight, in parts if it is large, and rounds it to the dtype of x. The
    /// weight is a constant: x and the bias have gradients. Errors: `Shape`; `Dtype` unless x and the bias are floats of one dtype; `Device`.
    pub fn quantized_linear(&self, weight: &QuantizedWeight, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = "quantized_linear";
        if let Some(([x], bias)) = autocast::low([self], bias)? {
            return no_autocast(|| x.quantized_linear(weight, bias.as_ref()));
        }
        check_float(op, self)?;
        if let Some(bias) = bias {
            check_same(op, &[self, bias])?;
        }
        check_device(op, &[self, weight.bytes()])?;
        let [output, input] = weight.dims();
        if self.dims().last() != Some(&input) || bias.is_some_and(|bias| bias.dims() != [output]) {
            let bias = bias.map_or(String::new(), |bias| format!(" and bias {}", bias.shape()));
            let blocks = weight.bytes().shape();
            let given = format!("x {}, blocks {blocks}{bias} are no product", self.shape());
            return Err(Error::shape(op, format!("{given}: these blocks are a weight [{output}, {input}]")));
        }
        let y = product(op, &self.detach(), weight, bias.map(Tensor::detach).as_ref())?;
        let present: Vec<&Tensor> = [Some(self), bias].into_iter().flatten().collect();
        report(op, &[&present[..1], &[weight.bytes()], &present[1..]].concat(), &[&y], || []);
        let (format, shape) = (weight.format(), bias.map(|bias| bias.shape().clone()));
        let saved = Saved::input(weight.bytes());
        Record::new(op, &present).rule(y, move |t| {
            let dx = t.want(0, || turned(t.dy(), &QuantizedWeight::new(format, &t.get(&saved)?, input)?))?;
            match &shape {
                Some(shape) => gradients![dx, t.want(1, || t.dy().sum_to_size(shape))?],
                None => gradients![dx],
            }
        })
    }
}

/// The product, outside of the tape.
fn product(op: &'static str, x: &Tensor, weight: &QuantizedWeight, bias: Option<&Tensor>) -> Result<Tensor> {
    let ([output, input], mut dims) = (weight.dims(), Dims::from_slice(x.dims()));
    let rows = dims[..dims.len() - 1].iter().product();
    *dims.last_mut().expect("x has a last dimension") = output;
    let kernel = QuantizedLinear { format: weight.format(), rows };
    if has_kernel::<QuantizedLinear>(x) && output > 0 && has_room(x, &kernel) {
        let y = Tensor::allocate(op, &Shape::from(dims), x.dtype(), x.device())?;
        let (x, bias) = (x.reshape((rows, input))?.contiguous()?, bias.map(Tensor::contiguous).transpose()?);
        let inputs = QuantizedInputs { x: &x, weight: weight.bytes(), bias: bias.as_ref() };
        run_fused(op, &kernel, inputs, Output { y: &y.reshape((rows, output))? })?;
        return Ok(y);
    }
    let parts = parts(output, input, 1).map(|(start, count)| {
        let bias = bias.map(|bias| bias.narrow(0, start, count)).transpose()?;
        x.linear(&weight.narrow(start, count)?.dequantize(x.dtype())?, bias.as_ref())
    });
    joined(parts.collect::<Result<_>>()?)
}

/// `dy w`, the gradient of x, in ops of tensors.
fn turned(dy: &Tensor, weight: &QuantizedWeight) -> Result<Tensor> {
    let ([output, input], block) = (weight.dims(), weight.format().elements());
    let size = weight.format().bytes();
    let parts = parts(input, output, block).map(|(start, count)| {
        let bytes = weight.bytes().narrow(1, start / block * size, count / block * size)?;
        dy.linear(&QuantizedWeight::new(weight.format(), &bytes, count)?.dequantize(dy.dtype())?.t()?, None)
    });
    joined(parts.collect::<Result<_>>()?)
}

/// Parts of `extent` rows with `width` numbers each: the first row and the number of rows, a multiple of `step`. There is at least one.
fn parts(extent: usize, width: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = (AT_ONCE / width.max(1) / step * step).max(step);
    (0..extent.max(1)).step_by(count).map(move |start| (start, count.min(extent - start)))
}

/// Parts along the last dimension.
fn joined(mut parts: Vec<Tensor>) -> Result<Tensor> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Tensor::concat(&parts.iter().collect::<Vec<_>>(), -1),
    }
}
