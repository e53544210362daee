//! Quantised weights of every format: their numbers bit for bit, products with few and many rows, gradients, and sizes that are refused.

use isograd::quantized::{BlockFormat, QuantizedWeight};
use isograd::{DType, Device, Kind, Result, Rng, Tensor};
use isograd_tests::harness::{expect, refused, text, trial};
use libtest_mimic::Trial;

type Outcome = std::result::Result<(), String>;

pub fn trials(device: &Device) -> Vec<Trial> {
    let of = |format: &BlockFormat, aspect: &str, check: fn(&Device, BlockFormat) -> Result<Outcome>| {
        let (at, format) = (device.clone(), *format);
        let name = format!("quantized_{}", format.name().to_lowercase());
        trial(device, &name, aspect, move || check(&at, format).map_err(text)?)
    };
    let numbers = BlockFormat::ALL.iter().map(|format| of(format, "numbers", numbers));
    let products = BlockFormat::ALL.iter().map(|format| of(format, "products", products));
    let at = device.clone();
    let sizes = trial(device, "quantized", "sizes", move || sizes(&at));
    numbers.chain(products).chain([sizes]).collect()
}

/// Rows and columns of the weights: rows are no multiple of what kernels take.
const ROWS: usize = 37;
const COLUMNS: usize = 512;

/// Blocks of any bits. Scales are finite, and none is subnormal in f32; in `is_moderate` ones those of f16 are from 2^-10 to 2^-6.
fn blocks(format: BlockFormat, is_moderate: bool) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut bytes: Vec<u8> = (0..ROWS * format.row_bytes(COLUMNS).unwrap()).map(|_| next()).collect();
    for block in bytes.chunks_mut(format.bytes()) {
        let scales: &[usize] = match format {
            BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
            BlockFormat::Q2K => &[80, 82],
            BlockFormat::Q3K => &[108],
            BlockFormat::Q6K => &[208],
            BlockFormat::Mxfp4 | BlockFormat::Nf4 => &[],
            _ => &[0],
        };
        for &at in scales {
            block[at + 1] = match is_moderate {
                true => block[at + 1] & 0x83 | (5 + next() % 4) << 2,
                false => block[at + 1] & 0xBF,
            };
        }
        match format {
            BlockFormat::Mxfp4 => block[0] = if is_moderate { 116 + next() % 8 } else { 64 + next() / 2 },
            BlockFormat::Nf4 => block[..4].copy_from_slice(&(f32::from(next()) / 99.0).to_le_bytes()),
            _ => {}
        }
    }
    bytes
}

/// The numbers on a device are those of the host, also of blocks at an odd place and of chosen rows.
fn numbers(device: &Device, format: BlockFormat) -> Result<Outcome> {
    let bytes = blocks(format, false);
    let weight = QuantizedWeight::from_bytes(format, &bytes, [ROWS, COLUMNS], device)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let expected = format.numbers("numbers", &bytes, dtype)?;
        if weight.dequantize(dtype)?.to_bytes()? != expected {
            return Ok(Err(format!("{dtype}: the numbers differ from the host's")));
        }
    }
    let row = bytes.len() / ROWS;
    let shifted = [&[7], &bytes[..]].concat();
    let shifted = Tensor::from_bytes(&shifted, 1 + bytes.len(), DType::U8, device)?.narrow(0, 1, bytes.len())?;
    let expected = format.numbers("numbers", &bytes, DType::F32)?;
    let moved = QuantizedWeight::new(format, &shifted.reshape((ROWS, row))?, COLUMNS)?.dequantize(DType::F32)?;
    let index = Tensor::from_slice(&[36i64, 0, 0, 5], (2, 2), device)?;
    let chosen = weight.embedding(&index, DType::F32)?;
    let whole = Tensor::from_bytes(&expected, (ROWS, COLUMNS), DType::F32, &Device::cpu()?)?;
    let rows = whole.index_select(0, &index.to_device(&Device::cpu()?)?.flatten(0, -1)?)?;
    Ok(expect(moved.to_bytes()? == expected, "blocks at an odd place have other numbers".into())
        .and(expect(chosen.dims() == [2, 2, COLUMNS], format!("an embedding is {}", chosen.shape())))
        .and(expect(chosen.to_bytes()? == rows.to_bytes()?, "chosen rows have other numbers".into())))
}

/// Products and gradients are within the roundings of sums of those with dequantised weights, in f64 on the CPU.
fn products(device: &Device, format: BlockFormat) -> Result<Outcome> {
    let cpu = Device::cpu()?;
    let bytes = blocks(format, true);
    let weight = QuantizedWeight::from_bytes(format, &bytes, [ROWS, COLUMNS], device)?;
    let numbers = format.numbers("numbers", &bytes, DType::F64)?;
    let w = Tensor::from_bytes(&numbers, (ROWS, COLUMNS), DType::F64, &cpu)?;
    let normal = |shape: &[usize]| Tensor::randn(shape, 0.0, 1.0, DType::F32, &cpu, &Rng::new(shape[0] as u64));
    for rows in [1, 2, 5, 8, 9, 33] {
        let (x, bias, dy) = (normal(&[rows, COLUMNS])?, normal(&[ROWS])?, normal(&[rows, ROWS])?);
        let own_x = x.to_device(device)?.require_grad()?;
        let own_bias = bias.to_device(device)?.require_grad()?;
        let y = own_x.quantized_linear(&weight, Some(&own_bias))?;
        y.mul(&dy.to_device(device)?)?.sum(..)?.backward()?;
        let [x, bias, dy] = [&x, &bias, &dy].map(|t| t.cast(DType::F64));
        let (x, bias, dy) = (x?, bias?, dy?);
        let dx = own_x.grad().expect("x is a leaf");
        let results = [
            (y.detach(), x.linear(&w, Some(&bias))?, x.abs()?.linear(&w.abs()?, Some(&bias.abs()?))?),
            (dx, dy.matmul(&w)?, dy.abs()?.matmul(&w.abs()?)?),
        ];
        for (found, expected, size) in results {
            let off = found.to_device(&cpu)?.cast(DType::F64)?.sub(&expected)?.abs()?;
            // A sum of 512 terms in f32.
            let worst = off.div(&size.mul_scalar(1e-6)?.add_scalar(1e-30)?)?.amax(..)?.item::<f64>()?;
            if worst.is_nan() || worst > 4.0 {
                return Ok(Err(format!("{rows} rows are off by {worst} times 1e-6 of the sum of sizes")));
            }
        }
    }
    Ok(Ok(()))
}

/// Sizes that do not fit, as damaged files have them, are errors.
fn sizes(device: &Device) -> Outcome {
    let of = |bytes: &[u8], dims| QuantizedWeight::from_bytes(BlockFormat::Q4_0, bytes, dims, device);
    refused("a byte too few", of(&[0; 35], [2, 32]), Kind::Shape, "2 rows of 18 bytes, got 35")?;
    refused("half a block", of(&[0; 18], [2, 16]), Kind::Shape, "16 columns are no whole blocks of Q4_0")?;
    refused("too many rows", of(&[], [usize::MAX, 64]), Kind::Shape, "rows of 36 bytes, got 0")?;
    let weight = of(&[0; 36], [2, 32]).map_err(text)?;
    refused("integers", weight.dequantize(DType::I32), Kind::Dtype, "expected a float dtype")?;
    let x = Tensor::zeros((3, 64), DType::F32, device).map_err(text)?;
    refused("too long a row", x.quantized_linear(&weight, None), Kind::Shape, "x [3, 64], blocks [2, 18]")?;
    refused("a format that is read", QuantizedWeight::quantize(&x, BlockFormat::Iq4Nl), Kind::Unsupported, "IQ4_NL")?;
    refused("floats as blocks", QuantizedWeight::new(BlockFormat::Q4_0, &x, 32), Kind::Dtype, "expected u8")?;
    let empty = of(&[], [0, 32]).and_then(|weight| x.narrow(1, 0, 32)?.quantized_linear(&weight, None));
    expect(empty.map_err(text)?.dims() == [3, 0], "a weight without rows".into())
}
