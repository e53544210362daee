//! Transformers of `isograd::models` against Hugging Face's, on every device. `golden/hugging_face.py` wrote the weights and results.

use isograd::models::causal::{CausalLm, ExpertOptions, Experts};
use isograd::models::{Bert, BertInput, Decoder, Gpt2, Gpt2Options, LanguageModel, Pretrained, Vit};
use isograd::nn::{AdamW, Forward, Init, Module, Optimizer, StateDict, load};
use isograd::ops::Sampling;
use isograd::{DType, Device, Result, Rng, Tensor, autocast, no_grad};
use isograd_tests::harness::{text, trial};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};

type Outcome = std::result::Result<(), String>;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |network: &str, aspect: &str, run: fn(&Device) -> Result<Outcome>| {
        let at = device.clone();
        trial(device, network, aspect, move || run(&at).map_err(text)?)
    };
    vec![
        check("gpt2", "logits", |d| logits(&gpt2(d)?, "gpt2")),
        check("gpt2", "losses_of_20_steps", losses),
        check("gpt2", "decoding_in_parts", |d| decoding(&gpt2(d)?, "gpt2")),
        check("gpt2", "decoding_of_several_lengths", |d| several_lengths(&gpt2(d)?, "gpt2")),
        check("gpt2", "decoder", decoder),
        check("gpt2", "mixed_precision", mixed_precision),
        check("llama", "logits", |d| logits(&llama(d)?, "llama")),
        check("llama", "decoding_in_parts", |d| decoding(&llama(d)?, "llama")),
        check("llama", "decoding_of_several_lengths", |d| several_lengths(&llama(d)?, "llama")),
        check("llama", "gradients_in_mixed_precision", trains_in_16_bits),
        check("decoders", "logits_and_gradients", decoders),
        check("decoders", "gguf_files", gguf_files),
        check("decoders", "greedy_decoding", greedy_decoding),
        check("decoders", "folders_come_back", folders_come_back),
        check("experts", "all_ways_agree", experts),
        check("bert", "features", bert),
        check("vit", "logits", vit),
    ]
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/hugging_face").join(name)
}

fn gpt2(device: &Device) -> Result<Gpt2> {
    Gpt2::load(folder("gpt2"), &Init::new(device).seed(1))
}

fn llama(device: &Device) -> Result<CausalLm> {
    CausalLm::load(folder("llama"), &Init::new(device).seed(1))
}

fn expected(name: &str, device: &Device) -> Result<StateDict> {
    Ok(load(folder(name).join("expected.safetensors"), device)?.tensors)
}

fn device_of(model: &impl Module) -> Device {
    model.parameters()[0].device().clone()
}

fn largest(x: &Tensor) -> Result<f64> {
    x.abs()?.amax(..)?.item::<f64>()
}

/// The largest difference is at most `bound`.
fn near(what: &str, got: &Tensor, expected: &Tensor, bound: f64) -> Result<Outcome> {
    if got.shape() != expected.shape() {
        return Ok(Err(format!("{what}: the shape is {}, expected {}", got.shape(), expected.shape())));
    }
    let (got, expected) = (got.to_f64_vec()?, expected.to_f64_vec()?);
    let far = |(g, e): (&f64, &f64)| (g - e).abs().partial_cmp(&bound).is_none_or(|order| order.is_gt());
    let wrong = got.iter().zip(&expected).enumerate().find(|(_, (g, e))| far((g, e)));
    Ok(wrong.map_or(Ok(()), |(i, (g, e))| Err(format!("{what}: element {i} is {g}, expected {e} within {bound}"))))
}

fn logits(model: &impl LanguageModel, name: &str) -> Result<Outcome> {
    let golden = expected(name, &device_of(model))?;
    near("logits", &model.forward(&golden["tokens"])?, &golden["logits"], 1e-4)
}

/// The folders of decoders.
const DECODERS: [&str; 11] =
    ["mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "gpt_neox", "mixtral", "qwen2_moe", "qwen3_moe"];

fn of_each(mut check: impl FnMut(&str) -> Result<Outcome>) -> Result<Outcome> {
    for name in DECODERS {
        if let Err(why) = check(name).map_err(|e| e.of(name))? {
            return Ok(Err(format!("{name}: {why}")));
        }
    }
    Ok(Ok(()))
}

/// Gradients have the names of files, by which a model saves them.
fn decoders(device: &Device) -> Result<Outcome> {
    let saved = tempfile::tempdir().expect("a folder");
    of_each(|name| {
        let (model, golden) = (CausalLm::load(folder(name), &Init::new(device).seed(1))?, expected(name, device)?);
        let (tokens, t) = (&golden["tokens"], golden["tokens"].dims()[1]);
        let logits = model.forward(tokens)?;
        if let Err(why) = near("logits", &logits, &golden["logits"], 1e-4)? {
            return Ok(Err(why));
        }
        if let Some(long) = golden.get("long")
            && let Err(why) = near("logits of long", &model.forward(long)?, &golden["logits of long"], 1e-4)?
        {
            return Ok(Err(why));
        }
        let (before, after) = (logits.narrow(1, 0, t - 1)?, tokens.narrow(1, 1, t - 1)?);
        before.flatten(0, 1)?.cross_entropy(&after.flatten(0, 1)?)?.backward()?;
        for p in model.parameters() {
            let gradient = p.grad().map_or_else(|| p.detach().zeros_like(), Ok)?;
            no_grad(|| p.copy_(&gradient))?;
        }
        model.save(saved.path())?;
        let found = load(saved.path().join("model.safetensors"), device)?.tensors;
        let gradients = golden.iter().filter_map(|(name, dw)| Some((name.strip_prefix("d ")?, dw)));
        for (name, dw) in gradients {
            let found = found.get(name).ok_or_else(|| isograd::Error::value("save", format!("no tensor {name}")))?;
            if let Err(why) = near(name, found, dw, 1e-4)? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    })
}

/// A GGUF file is the network of its folder.
fn gguf_files(device: &Device) -> Result<Outcome> {
    of_each(|name| {
        let path = folder(name).join("model.gguf");
        if !path.is_file() {
            return Ok(Ok(()));
        }
        let (model, golden) = (CausalLm::load(path, &Init::new(device).seed(1))?, expected(name, device)?);
        near("logits", &model.forward(&golden["tokens"])?, &golden["logits"], 1e-4)
    })
}

/// The most probable tokens, with a cache.
fn greedy_decoding(device: &Device) -> Result<Outcome> {
    of_each(|name| {
        let model = CausalLm::load(folder(name), &Init::new(device).seed(1))?;
        let golden = expected(name, device)?["greedy"].to_vec::<i64>()?;
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let mut decoder = Decoder::new(&model, golden.len(), &greedy, Rng::new(1));
        let mut found = golden[..6].to_vec();
        found.extend(decoder.prompt(&Tensor::from_slice(&golden[..6], (1, 6), device)?, None)?.to_vec::<i64>()?);
        while found.len() < golden.len() {
            found.extend(decoder.next()?.to_vec::<i64>()?);
        }
        Ok(if found == golden { Ok(()) } else { Err(format!("tokens are {found:?}, expected {golden:?}")) })
    })
}

fn folders_come_back(device: &Device) -> Result<Outcome> {
    let saved = tempfile::tempdir().expect("a folder");
    of_each(|name| {
        let first = CausalLm::load(folder(name), &Init::new(device).seed(1))?;
        first.save(saved.path())?;
        let again = CausalLm::load(saved.path(), &Init::new(device).seed(2))?;
        let bits =
            |model: &CausalLm| -> Result<Vec<Vec<u8>>> { model.parameters().iter().map(Tensor::to_bytes).collect() };
        let (before, after) = (first.options(), again.options());
        let is_same = before == after && bits(&first)? == bits(&again)?;
        Ok(if is_same { Ok(()) } else { Err(format!("{before:?} came back as {after:?}, or weights differ")) })
    })
}

/// Rows that their experts compute, rows that gather weights, and rows that all experts compute.
fn experts(device: &Device) -> Result<Outcome> {
    let options = ExpertOptions {
        count: 6,
        taken: 2,
        hidden: 5,
        shared: Some(4),
        normalized: true,
        every: 1,
        without: Vec::new(),
    };
    let init = Init::new(device).seed(3);
    let layer = Experts::new(8, &options, Default::default(), &init)?;
    for rows in [2, 9] {
        let x = init.normal((1, rows, 8), 0.0, 1.0)?;
        let run = |x: &Tensor| {
            let y = layer.forward(x)?;
            y.square()?.sum(..)?.backward()?;
            let parameters = layer.parameters();
            let gradients = parameters.iter().map(|p| {
                let gradient = p.grad().map_or_else(|| p.detach().zeros_like(), Ok);
                p.set_grad(None)?;
                gradient
            });
            [y.detach()].into_iter().map(Ok).chain(gradients).collect::<Result<Vec<_>>>()
        };
        let plain: Vec<Tensor> = run(&x.detach())?;
        let captured = device.capture(|x: Tensor| run(&x)).run(x.detach())?;
        for (i, (captured, plain)) in captured.iter().zip(&plain).enumerate() {
            if let Err(why) = near(&format!("{rows} rows, tensor {i}"), captured, plain, 1e-6)? {
                return Ok(Err(why));
            }
        }
    }
    Ok(Ok(()))
}

fn losses(device: &Device) -> Result<Outcome> {
    let (model, golden) = (gpt2(device)?, expected("gpt2", device)?);
    let mut optimizer = AdamW::new(&model).lr(3e-3);
    let (batches, length) = (golden["batches"].dims()[0], golden["batches"].dims()[2] - 1);
    let mut found = Vec::new();
    for step in 0..20 {
        let batch = golden["batches"].select(0, (step % batches) as isize)?;
        let logits = model.forward(&batch.narrow(1, 0, length)?)?.flatten(0, 1)?;
        let loss = logits.cross_entropy(&batch.narrow(1, 1, length)?.flatten(0, 1)?)?;
        loss.backward()?;
        optimizer.step()?;
        found.push(loss.item::<f64>()?);
    }
    assert!(found[19] < 0.6 * found[0], "nothing was learnt: {found:?}");
    near("losses", &Tensor::from_vec(found, 20, device)?, &golden["losses"], 1e-3)
}

/// Parts of several lengths, each after those in the cache, and the same memory for other sequences.
fn decoding(model: &impl LanguageModel, name: &str) -> Result<Outcome> {
    let tokens = expected(name, &device_of(model))?["tokens"].clone();
    let t = tokens.dims()[1];
    let whole = no_grad(|| model.forward(&tokens))?;
    let mut cache = model.cache(t);
    for lengths in [&[5, 1, 1, 3][..], &[1, 1, 2]] {
        let mut start = 0;
        for &length in lengths {
            let part = model.forward_cached(&tokens.narrow(1, start, length)?, &mut cache)?;
            let at = format!("{length} tokens after {start}");
            if let Err(why) = near(&at, &part, &whole.narrow(1, start, length)?, 1e-5)? {
                return Ok(Err(why));
            }
            start += length;
            assert_eq!(cache.len(), start);
        }
        let next = model.next_logits(&tokens.narrow(1, start, t - start)?, &mut cache)?;
        if let Err(why) = near("the next token", &next, &whole.select(1, -1)?, 1e-5)? {
            return Ok(Err(why));
        }
        cache.truncate(0)?;
    }
    // The first 4 positions are kept.
    model.forward_cached(&tokens.narrow(1, 0, 9)?, &mut cache)?;
    cache.truncate(4)?;
    let part = model.forward_cached(&tokens.narrow(1, 4, 3)?, &mut cache)?;
    near("after truncation", &part, &whole.narrow(1, 4, 3)?, 1e-5)
}

/// Sequences of several lengths in a batch have the logits of each alone.
fn several_lengths(model: &impl LanguageModel, name: &str) -> Result<Outcome> {
    let device = device_of(model);
    let tokens = expected(name, &device)?["tokens"].clone();
    let whole = no_grad(|| model.forward(&tokens))?;
    let (b, t) = (tokens.dims()[0], tokens.dims()[1]);
    let lengths: Vec<usize> = (0..b).map(|i| t - 3 - i % 2 * 3).collect();
    let mut cache = model.cache(t);
    model.forward_cached(&tokens.narrow(1, 0, t - 3)?, &mut cache)?;
    cache.truncate_each(&lengths)?;
    for step in 0..3 {
        let at = |x: &Tensor| {
            let one = |i: usize| x.narrow(0, i, 1)?.narrow(1, lengths[i] + step, 1);
            let all = (0..b).map(one).collect::<Result<Vec<_>>>()?;
            Tensor::concat(&all.iter().collect::<Vec<_>>(), 0)
        };
        let part = model.forward_cached(&at(&tokens)?, &mut cache)?;
        if let Err(why) = near(&format!("step {step}"), &part, &at(&whole)?, 1e-5)? {
            return Ok(Err(why));
        }
    }
    Ok(Ok(()))
}

/// A decoder, which captures its step on devices that record, draws the tokens of plain calls. Its memory grows on the way.
fn decoder(device: &Device) -> Result<Outcome> {
    let options = Gpt2Options { vocab: 97, context: 300, layers: 2, heads: 2, width: 16, dropout: 0.0 };
    let model = Gpt2::new(&options, &Init::new(device).seed(5))?;
    model.eval();
    let rows: Vec<i64> = (0..500).map(|i| i * i % 97).collect();
    let tokens = Tensor::from_slice(&rows, (2, 250), device)?;
    let sampling = Sampling { temperature: 3.0, top_k: 20, ..Sampling::default() };
    let (rng, lengths) = (Rng::new(3), [250, 190]);
    let mut plain = Vec::new();
    for (i, &length) in lengths.iter().enumerate() {
        // Draws are those of the row of a batch.
        let mut cache = model.cache(300);
        let mut new = tokens.narrow(0, i, 1)?.narrow(1, 0, length)?;
        let own = Rng::new(3);
        let mut drawn = Vec::new();
        for _ in 0..12 {
            let logits = model.next_logits(&new, &mut cache)?.broadcast_to((2, 97))?.contiguous()?;
            new = logits.sample_logits(&sampling, &own)?.narrow(0, i, 1)?.reshape((1, 1))?;
            drawn.extend(new.to_vec::<i64>()?);
        }
        plain.push(drawn);
    }
    let mut decoder = Decoder::new(&model, 300, &sampling, rng);
    let mut found = vec![decoder.prompt(&tokens, Some(&lengths))?.to_vec::<i64>()?];
    for _ in 0..11 {
        found.push(decoder.next()?.to_vec::<i64>()?);
    }
    let found: Vec<Vec<i64>> = (0..2).map(|i| found.iter().map(|row| row[i]).collect()).collect();
    if found != plain {
        return Ok(Err(format!("the decoder drew {found:?}, plain calls {plain:?}")));
    }
    if decoder.lengths() != [261, 201] {
        return Ok(Err(format!("the lengths are {:?}", decoder.lengths())));
    }
    Ok(Ok(()))
}

/// Weights in bf16 have 8 bits: logits are near those of f32, and decoding near the forward pass, in both kinds of 16 bits.
fn mixed_precision(device: &Device) -> Result<Outcome> {
    let (model, golden) = (gpt2(device)?, expected("gpt2", device)?);
    let scale = largest(&golden["logits"])?;
    for (dtype, bound) in [(DType::F16, 0.01), (DType::BF16, 0.06)] {
        let y = autocast(dtype, || no_grad(|| model.forward(&golden["tokens"])))?;
        if let Err(why) = near(&format!("{dtype}"), &y, &golden["logits"], bound * scale)? {
            return Ok(Err(why));
        }
        let mut cache = model.cache(12);
        let y = autocast(dtype, || model.next_logits(&golden["tokens"], &mut cache))?;
        if let Err(why) = near(&format!("{dtype}, cached"), &y, &golden["logits"].select(1, -1)?, bound * scale)? {
            return Ok(Err(why));
        }
    }
    Ok(Ok(()))
}

/// The parts of blocks have 16 bits, their sums f32. All parameters learn.
fn trains_in_16_bits(device: &Device) -> Result<Outcome> {
    let model = llama(device)?;
    let tokens = expected("llama", device)?["tokens"].clone();
    let (input, target) = (tokens.narrow(1, 0, 23)?, tokens.narrow(1, 1, 23)?.flatten(0, 1)?);
    let loss = autocast(DType::BF16, || model.forward(&input)?.flatten(0, 1)?.cross_entropy(&target))?;
    loss.backward()?;
    for (name, parameter) in model.named_parameters() {
        let Some(gradient) = parameter.grad() else { return Ok(Err(format!("{name} has no gradient"))) };
        let size = largest(&gradient)?;
        if gradient.dtype() != DType::F32 || !(size > 0.0 && size.is_finite()) {
            return Ok(Err(format!("{name} has a gradient in {} of size {size}", gradient.dtype())));
        }
    }
    Ok(Ok(()))
}

/// Two segments, and padding behind the second sequence.
fn bert(device: &Device) -> Result<Outcome> {
    let model = Bert::load(folder("bert"), &Init::new(device).seed(1))?;
    let golden = expected("bert", device)?;
    let plain = near("without segments and padding", &model.forward(&golden["tokens"])?, &golden["plain"], 1e-4)?;
    let input = BertInput {
        tokens: golden["tokens"].clone(),
        segments: Some(golden["segments"].clone()),
        attended: Some(golden["attended"].clone()),
    };
    let features = model.forward_with(&input)?;
    let same = near("features", &features, &golden["features"], 1e-4)?;
    let pooled = near("pooled", &model.pooled(&features)?, &golden["pooled"], 1e-4)?;
    Ok(plain.and(same).and(pooled))
}

fn vit(device: &Device) -> Result<Outcome> {
    let model = Vit::load(folder("vit"), &Init::new(device).seed(1))?;
    let golden = expected("vit", device)?;
    near("logits", &model.forward(&golden["images"])?, &golden["logits"], 1e-4)
}
