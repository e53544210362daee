//! Times decoding and packed sequences: `decoding [DEVICE]`. Prints a line of JSON for each measurement. `benches/attention_torch.py` prints those of
//! PyTorch. Memory moves at the rate of a large copy, in bytes that are read and written; the floor of a token of GPT-2 is the time in which its
//! weights are read once at this rate.

mod print;

use isograd::models::{CausalLm, CausalLmOptions, Decoder, Gpt2, Gpt2Options, LanguageModel};
use isograd::nn::QuantizedLinear;
use isograd::ops::{Attention, Causal, Sampling};
use isograd::prelude::*;
use isograd::quantized::{BlockFormat, QuantizedWeight};
use isograd::tape::{BackwardOptions, grad_from};
use isograd::{DType, no_grad};
use print::print;
use std::time::Instant;

/// The median seconds of `f`, of 20 runs on the device's clock.
fn seconds(device: &Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    (0..3).try_for_each(|_| f())?;
    let mut all = (0..20).map(|_| device.time(&mut f)).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[10])
}

/// Bytes a second of a copy of a GiB.
fn bandwidth(device: &Device) -> Result<f64> {
    let [x, y] = [0, 1].map(|_| Tensor::zeros(1 << 28, DType::F32, device));
    let (x, y) = (x?, y?);
    Ok(2.0 * (1u64 << 30) as f64 / seconds(device, || y.copy_(&x))?)
}

/// The tokens of a sequence after a prompt of 300, one at a time; `bytes` are those of the weights.
fn decode(name: &str, model: &dyn LanguageModel, bytes: usize, device: &Device, rate: f64) -> Result<()> {
    let floor = bytes as f64 / rate;
    let prompt = Tensor::arange(300, device)?.reshape((1, 300))?;
    let sampling = Sampling { temperature: 0.8, top_k: 40, ..Sampling::default() };
    let mut decoder = Decoder::new(model, 1024, &sampling, Rng::new(1));
    decoder.prompt(&prompt, None)?;
    for _ in 0..8 {
        decoder.next()?.to_vec::<i64>()?;
    }
    let start = Instant::now();
    for _ in 0..80 {
        decoder.next()?;
    }
    device.synchronize()?;
    let queued = start.elapsed().as_secs_f64() / 80.0;
    let start = Instant::now();
    for _ in 0..80 {
        decoder.next()?.to_vec::<i64>()?;
    }
    let read = start.elapsed().as_secs_f64() / 80.0;
    let launches = device.backend().launch_count().unwrap_or_default();
    // The same without a captured step.
    let mut cache = model.cache(1024);
    let mut new = prompt;
    let rng = Rng::new(1);
    let mut plain = f64::NAN;
    for i in 0..60 {
        let start = Instant::now();
        let logits = model.next_logits(&new, &mut cache)?;
        new = logits.sample_logits(&sampling, &rng)?.reshape((1, 1))?;
        new.to_vec::<i64>()?;
        if i >= 10 {
            plain = plain.min(start.elapsed().as_secs_f64());
        }
    }
    let launches = (device.backend().launch_count().unwrap_or_default() - launches) / 60;
    print(&format!(
        r#"{{"decode": "{name}", "of_copy": {:.3}, "queued_ms": {:.4}, "read_ms": {:.4}, "plain_ms": {:.4}, "floor_ms": {:.4}, "launches": {launches}}}"#,
        floor / queued,
        queued * 1e3,
        read * 1e3,
        plain * 1e3,
        floor * 1e3
    ));
    Ok(())
}

/// The time of a prompt of 512 tokens, and of a token of each of 64 sequences.
fn prompts(name: &str, model: &dyn LanguageModel, parameters: usize, device: &Device) -> Result<()> {
    let prompt = Tensor::arange(512, device)?.reshape((1, 512))?;
    let time = seconds(device, || model.next_logits(&prompt, &mut model.cache(512)).map(drop))?;
    let tflops = 2.0 * 512.0 * parameters as f64 / time / 1e12;
    let many = Tensor::zeros((64, 300), DType::I64, device)?;
    let mut decoder = Decoder::new(model, 1024, &Sampling::default(), Rng::new(1));
    decoder.prompt(&many, None)?;
    for _ in 0..8 {
        decoder.next()?.to_vec::<i64>()?;
    }
    let start = Instant::now();
    for _ in 0..40 {
        decoder.next()?;
    }
    device.synchronize()?;
    let step = start.elapsed().as_secs_f64() / 40.0;
    print(&format!(
        r#"{{"prompt_of_512": "{name}", "ms": {:.3}, "tflop_s": {tflops:.1}, "ms_of_64_sequences": {:.4}}}"#,
        time * 1e3,
        step * 1e3
    ));
    Ok(())
}

fn gpt2(device: &Device, dtype: DType, rate: f64) -> Result<()> {
    let model = Gpt2::new(&Gpt2Options::small(), &Init::new(device).dtype(dtype).seed(1))?;
    model.eval();
    let bytes: usize = model.parameters().iter().map(|p| p.numel() * p.dtype().size()).sum();
    decode(&format!("GPT-2 124M {dtype}"), &model, bytes, device, rate)
}

/// A network as LLaMA's, in bf16, whose projections have blocks of zeros where a format is given: the time does not depend on the numbers.
fn llama(name: &str, options: &CausalLmOptions, format: Option<BlockFormat>, device: &Device, rate: f64) -> Result<()> {
    let mut model = CausalLm::new(options, &Init::new(device).dtype(DType::BF16).seed(1))?;
    let (mut bytes, mut numbers) = (0, 0);
    let mut count = |parameter: &Tensor| {
        numbers += parameter.numel();
        bytes += parameter.numel() * parameter.dtype().size();
    };
    match format {
        None => model.parameters().iter().for_each(&mut count),
        Some(format) => model.replace_matching("*", &mut |_, layer| {
            let [rows, columns] = [0, 1].map(|d| layer.parameters()[0].dims()[d]);
            let blocks = Tensor::zeros((rows, format.row_bytes(columns).unwrap_or(0)), DType::U8, device)?;
            bytes += blocks.numel();
            numbers += rows * columns;
            Ok(Box::new(QuantizedLinear { weight: QuantizedWeight::new(format, &blocks, columns)?, bias: None }))
        })?,
    }
    model.eval();
    let name = format!("{name} {}", format.map_or("bf16", |format| format.name()));
    decode(&name, &model, bytes, device, rate)?;
    prompts(&name, &model, numbers, device)
}

/// One query of each head to 65,536 keys.
fn many_keys(device: &Device, heads: usize, rate: f64) -> Result<()> {
    let normal = |heads, rows| Tensor::randn((1, heads, rows, 128), 0.0, 1.0, DType::BF16, device, &Rng::new(1));
    let (q, k, v) = (normal(heads, 1)?, normal(8, 65_536)?, normal(8, 65_536)?);
    let time = seconds(device, || q.scaled_dot_product_attention(&k, &v, &Attention::default()).map(drop))?;
    let bytes = 2 * k.numel() * 2;
    print(&format!(
        r#"{{"many_keys": {heads}, "ms": {:.4}, "of_copy": {:.3}}}"#,
        time * 1e3,
        bytes as f64 / time / rate
    ));
    Ok(())
}

/// 16 sequences of 128 to 2,048 tokens.
fn packed(device: &Device) -> Result<()> {
    let mut starts = vec![0i64];
    (1..=16).for_each(|i| starts.push(starts[i - 1] + 128 * i as i64));
    let rows = starts[16] as usize;
    let starts = Tensor::from_vec(starts, 17, device)?;
    let leaf = |seed| Tensor::randn((rows, 16, 128), 0.0, 1.0, DType::BF16, device, &Rng::new(seed))?.require_grad();
    let (q, k, v, dy) = (leaf(1)?, leaf(2)?, leaf(3)?, leaf(4)?.detach());
    let causal = Attention { causal: Causal::TopLeft, ..Attention::default() };
    let attend = || q.varlen_attention(&k, &v, &starts, &starts, &causal);
    let forward = seconds(device, || no_grad(attend).map(drop))?;
    let both = seconds(device, || {
        let y = attend()?;
        grad_from(&[(&y, dy.clone())], &[&q, &k, &v], &BackwardOptions::default()).map(drop)
    })?;
    print(&format!(r#"{{"packed_ms": {:.4}, "with_gradients_ms": {:.4}}}"#, forward * 1e3, both * 1e3));
    Ok(())
}

/// Memory of 65,536 keys, and of half of them, with gradients.
fn memory(device: &Device) -> Result<()> {
    for keys in [32_768, 65_536] {
        let leaf =
            |seed| Tensor::randn((1, 4, keys, 128), 0.0, 1.0, DType::BF16, device, &Rng::new(seed))?.require_grad();
        let (q, k, v) = (leaf(1)?, leaf(2)?, leaf(3)?);
        device.synchronize()?;
        device.backend().reset_peak();
        let causal = Attention { causal: Causal::TopLeft, ..Attention::default() };
        let start = Instant::now();
        q.scaled_dot_product_attention(&k, &v, &causal)?.sum(..)?.backward()?;
        device.synchronize()?;
        let one = q.numel() * 2;
        let peak = device.memory().peak as f64 / one as f64;
        print(&format!(
            r#"{{"keys": {keys}, "peak_in_tensors": {peak:.2}, "mib": {}, "seconds": {:.3}}}"#,
            device.memory().peak >> 20,
            start.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

fn main() -> Result<()> {
    let device: Device = std::env::args().nth(1).unwrap_or("cuda:0".into()).parse()?;
    let rate = bandwidth(&device)?;
    print(&format!(r#"{{"copy_tb_s": {:.3}}}"#, rate / 1e12));
    for dtype in [DType::BF16, DType::F32] {
        gpt2(&device, dtype, rate)?;
    }
    let small = CausalLmOptions::llama3_1b();
    llama("LLaMA 1.24B", &small, None, &device, rate)?;
    let large =
        CausalLmOptions { layers: 32, head_width: Some(128), width: 4096, hidden: 14_336, tied: false, ..small };
    for format in [BlockFormat::Q8_0, BlockFormat::Q4K] {
        llama("LLaMA 8B", &large, Some(format), &device, rate)?;
    }
    for heads in [8, 32] {
        many_keys(&device, heads, rate)?;
    }
    packed(&device)?;
    memory(&device)
}
