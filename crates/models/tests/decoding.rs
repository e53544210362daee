//! Decoding: changes of logits, prompts in parts, sequences that come and go, and the ends of texts.

use isograd_core::ops::Sampling;
use isograd_core::{Device, Kind, Result, Rng, Tensor, no_grad};
use isograd_cpu as _;
use isograd_models::{
    CausalLm, CausalLmOptions, Decoder, DecodingBatch, Gpt2, Gpt2Options, LanguageModel, LogitsOptions, TokenSampler,
    stop_tokens,
};
use isograd_nn::gguf::{Array, TensorType, Value};
use isograd_nn::{Init, StateDict, gguf};
use std::collections::BTreeMap;
use std::fs;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, num_samples: 1 };

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn row(tokens: &[i64]) -> Tensor {
    Tensor::from_slice(tokens, (1, tokens.len()), &cpu()).unwrap()
}

/// Small models of two kinds. The initial weights are small, so that all tokens would be nearly alike.
fn models() -> Result<Vec<Box<dyn LanguageModel>>> {
    let init = Init::new(&cpu()).seed(3);
    let gpt2 = Gpt2Options { vocab: 19, context: 40, layers: 2, heads: 2, width: 8, dropout: 0.5 };
    let llama = CausalLmOptions {
        vocab: 19,
        context: 40,
        layers: 2,
        heads: 4,
        key_heads: 2,
        width: 16,
        hidden: 24,
        ..CausalLmOptions::llama2_7b()
    };
    let all: Vec<Box<dyn LanguageModel>> =
        vec![Box::new(Gpt2::new(&gpt2, &init)?), Box::new(CausalLm::new(&llama, &init)?)];
    for model in &all {
        model.eval();
        let weights = model.parameters();
        weights.iter().filter(|t| t.rank() > 1).try_for_each(|t| no_grad(|| t.mul_(&t.full_like(8.0)?)))?;
    }
    Ok(all)
}

fn drawn(options: LogitsOptions, prompt: &[i64], logits: &[f32], count: usize) -> Result<Vec<i64>> {
    let mut sampler = TokenSampler::new(&GREEDY, &options, Rng::new(1))?;
    sampler.read(prompt);
    let logits = Tensor::from_slice(logits, (1, logits.len()), &cpu())?;
    (0..count).map(|_| sampler.draw(&logits)).collect()
}

#[test]
fn penalties_change_the_logits_of_tokens_that_the_text_has() -> Result<()> {
    let none = LogitsOptions::default();
    let logits = [2.0, 1.5, -1.0, 1.25];
    assert_eq!(drawn(none, &[0], &logits, 3)?, [0, 0, 0]);
    // The prompt counts: 2 / 1.5 = 1.33 is below 1.5, then 1.5 / 1.5 = 1 is below 1.33.
    let repetition = LogitsOptions { repetition_penalty: 1.5, ..none };
    assert_eq!(drawn(repetition, &[0], &logits, 3)?, [1, 0, 0]);
    // Negative logits are multiplied.
    assert_eq!(drawn(repetition, &[0], &[-1.0, -1.2], 1)?, [1]);
    // Only what was drawn counts: 2, 1.4, 1.5 again.
    let frequency = LogitsOptions { frequency_penalty: 0.6, ..none };
    assert_eq!(drawn(frequency, &[0, 0, 0], &logits, 4)?, [0, 1, 0, 3]);
    let presence = LogitsOptions { presence_penalty: 0.6, ..none };
    assert_eq!(drawn(presence, &[0], &logits, 4)?, [0, 1, 0, 0]);
    // Below 0 they ask for repetitions.
    let wished = LogitsOptions { presence_penalty: -1.0, ..none };
    assert_eq!(drawn(wished, &[1], &logits, 2)?, [0, 0]);
    Ok(())
}

#[test]
fn improbable_tokens_are_left_out() -> Result<()> {
    // Probabilities at the temperature 2 are those of the halves: 1, 0.61, 0.14 and 0.0025 of the largest.
    let logits = Tensor::from_slice(&[4.0f32, 3.0, 0.0, -8.0], (1, 4), &cpu())?;
    let kinds = |min_p: f64| -> Result<Vec<i64>> {
        let options = LogitsOptions { min_p, ..LogitsOptions::default() };
        let sampling = Sampling { temperature: 2.0, ..Sampling::default() };
        let mut sampler = TokenSampler::new(&sampling, &options, Rng::new(5))?;
        let mut found = (0..4000).map(|_| sampler.draw(&logits)).collect::<Result<Vec<_>>>()?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    };
    assert_eq!(kinds(0.0)?, [0, 1, 2, 3]);
    assert_eq!(kinds(0.1)?, [0, 1, 2]);
    assert_eq!(kinds(0.2)?, [0, 1]);
    assert_eq!(kinds(1.0)?, [0]);
    for options in [
        LogitsOptions { min_p: 1.5, ..LogitsOptions::default() },
        LogitsOptions { repetition_penalty: 0.0, ..LogitsOptions::default() },
        LogitsOptions { presence_penalty: f64::NAN, ..LogitsOptions::default() },
    ] {
        assert_eq!(TokenSampler::new(&GREEDY, &options, Rng::new(1)).unwrap_err().kind(), Kind::Attr);
    }
    Ok(())
}

#[test]
fn a_processor_sees_the_tokens_and_changes_the_logits() -> Result<()> {
    for model in models()? {
        let model = &*model;
        let mut seen = Vec::new();
        let processor = |logits: &mut [f32], tokens: &[i64]| {
            seen.push(tokens.to_vec());
            tokens.iter().for_each(|&token| logits[token as usize] = f32::NEG_INFINITY);
            Ok(())
        };
        let found =
            Decoder::new(model, 40, &GREEDY, Rng::new(1)).process_logits(processor).generate(&row(&[3, 7]), 5, &[])?;
        let text = [&[3, 7], &found[0][..]].concat();
        let expected: Vec<Vec<i64>> = (2..7).map(|count| text[..count].to_vec()).collect();
        assert_eq!(seen, expected);
        let mut kinds = text.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), 7, "{text:?}");
        // A prompt that continues a text begins with the token that was drawn last.
        let mut texts = Vec::new();
        let mut decoder = Decoder::new(model, 40, &GREEDY, Rng::new(1)).process_logits(|_, tokens| {
            texts.push(tokens.to_vec());
            Ok(())
        });
        let first = decoder.prompt(&row(&[3, 7]), None)?.item::<i64>()?;
        decoder.prompt(&row(&[first, 5]), None)?;
        decoder.truncate(1)?;
        decoder.prompt(&row(&[6]), None)?;
        drop(decoder);
        assert_eq!(texts, [vec![3, 7], vec![3, 7, first, 5], vec![3, 6]]);
        let error = Decoder::new(model, 40, &GREEDY, Rng::new(1))
            .process_logits(|_, _| Err(isograd_core::Error::value("grammar", "nothing may follow")))
            .prompt(&row(&[1]), None)
            .unwrap_err();
        assert_eq!(error.message(), "nothing may follow");
    }
    Ok(())
}

#[test]
fn a_prompt_in_parts_is_the_prompt() -> Result<()> {
    let prompts = Tensor::from_vec((0..22).map(|i| i * 7 % 19).collect::<Vec<i64>>(), (2, 11), &cpu())?;
    for model in models()? {
        for lengths in [None, Some([11, 4]), Some([3, 8])] {
            let of = |chunk| -> Result<(Vec<i64>, Vec<usize>)> {
                let mut decoder = Decoder::new(&*model, 40, &GREEDY, Rng::new(1)).chunk(chunk);
                let mut found = decoder.prompt(&prompts, lengths.as_ref().map(|l| &l[..]))?.to_vec::<i64>()?;
                for _ in 0..6 {
                    found.extend(decoder.next()?.to_vec::<i64>()?);
                }
                Ok((found, decoder.lengths()))
            };
            let whole = of(0)?;
            for chunk in [1, 4, 5, 11, 100] {
                assert_eq!(of(chunk)?, whole, "{lengths:?} by {chunk}");
            }
        }
        // A part that does not fit leaves the cache as it was.
        let mut decoder = Decoder::new(&*model, 14, &GREEDY, Rng::new(1)).chunk(2);
        decoder.prompt(&prompts, None)?;
        assert_eq!(decoder.prompt(&prompts, None).unwrap_err().kind(), Kind::Index);
        assert_eq!(decoder.lengths(), [11, 11]);
    }
    Ok(())
}

#[test]
fn sequences_come_and_go_without_changing_each_other() -> Result<()> {
    let prompts: [&[i64]; 5] = [&[1], &[2, 3, 4, 5, 6, 7, 8, 9, 10], &[11, 12], &[13, 14, 15, 16], &[17, 18, 0]];
    // When each comes, and how many tokens it gets.
    let (comes, counts) = ([0, 0, 2, 5, 20], [12, 3, 6, 9, 4]);
    for model in models()? {
        let options = LogitsOptions { repetition_penalty: 1.1, ..LogitsOptions::default() };
        let sampler = || TokenSampler::new(&GREEDY, &options, Rng::new(1));
        let mut batch = DecodingBatch::new(&*model, 40)?.chunk(4);
        let (mut found, mut most) = (vec![Vec::new(); 5], 0);
        for step in 0..40 {
            for (i, prompt) in prompts.iter().enumerate().filter(|(i, _)| comes[*i] == step) {
                batch.insert(i as u64, prompt, sampler()?)?;
            }
            most = most.max(batch.len());
            for (id, token) in batch.step()? {
                let id = id as usize;
                found[id].push(token?);
                if found[id].len() == counts[id] {
                    batch.remove(id as u64)?;
                }
            }
        }
        assert!(batch.is_empty() && most == 4, "{most}");
        for (i, prompt) in prompts.iter().enumerate() {
            let mut alone = Decoder::new(&*model, 40, &GREEDY, Rng::new(1)).logits_options(&options);
            assert_eq!(found[i], alone.generate(&row(prompt), counts[i], &[])?[0], "sequence {i}");
        }
    }
    Ok(())
}

#[test]
fn a_sequence_that_fails_leaves_the_others() -> Result<()> {
    let model = models()?.remove(1);
    let sampler = || TokenSampler::new(&GREEDY, &LogitsOptions::default(), Rng::new(1)).unwrap();
    let mut batch = DecodingBatch::new(&*model, 10)?;
    assert_eq!(batch.insert(0, &[], sampler()).unwrap_err().kind(), Kind::Value);
    assert_eq!(batch.insert(0, &[1; 11], sampler()).unwrap_err().kind(), Kind::Index);
    batch.insert(0, &[1, 2], sampler())?;
    assert_eq!(batch.insert(0, &[1], sampler()).unwrap_err().kind(), Kind::Value);
    let failing = sampler().process_logits(|_, tokens| match tokens.len() {
        0..4 => Ok(()),
        _ => Err(isograd_core::Error::value("grammar", "it ends")),
    });
    batch.insert(1, &[3, 4], failing)?;
    let mut found = Vec::new();
    for _ in 0..6 {
        found.extend(batch.step()?.into_iter().map(|(id, token)| (id, token.is_ok())));
    }
    let expected = [(0, true), (0, true), (1, true), (0, true), (1, true), (0, true), (1, false), (0, true), (0, true)];
    assert_eq!((found, batch.len()), (expected.to_vec(), 1));
    batch.remove(7)?;
    batch.remove(0)?;
    assert!(batch.is_empty() && batch.step()?.is_empty());
    Ok(())
}

#[test]
fn the_ends_of_texts_are_those_that_files_say() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert_eq!(stop_tokens(folder.path())?, [0; 0]);
    fs::write(at("config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    assert_eq!(stop_tokens(folder.path())?, [2]);
    fs::write(at("generation_config.json"), r#"{"eos_token_id": [7, 2, 5]}"#).unwrap();
    assert_eq!(stop_tokens(folder.path())?, [2, 5, 7]);
    fs::write(at("config.json"), "{").unwrap();
    assert_eq!(stop_tokens(folder.path()).unwrap_err().kind(), Kind::Format);
    let texts = ["a", "<|im_end|>", "<|end|>", "<|eot_id|>"].map(String::from).to_vec();
    let metadata = BTreeMap::from([
        ("tokenizer.ggml.eos_token_id".to_string(), Value::U32(9)),
        ("tokenizer.ggml.tokens".to_string(), Value::Array(Array::Text(texts))),
        // The third is a text like any other.
        ("tokenizer.ggml.token_type".to_string(), Value::Array(Array::I32(vec![1, 3, 1, 3]))),
    ]);
    let tensors = StateDict::from([("x".to_string(), row(&[1]))]);
    gguf::save(at("model.gguf"), &tensors, &metadata, |_, _| TensorType::I64)?;
    assert_eq!(stop_tokens(at("model.gguf"))?, [1, 3, 9]);
    Ok(())
}
