//! Language models without golden values: folders, caches, names of files and errors. Their results are in `tests/transformers.rs` at the
//! root.

use isograd_core::ops::Sampling;
use isograd_core::{DType, Device, Error, Kind, Result, Rng, Tensor, no_grad};
use isograd_cpu as _;
use isograd_models::causal::{Rotary, RotaryScaling};
use isograd_models::{
    BeamOptions, Bert, BertInput, BertOptions, CausalLm, CausalLmOptions, Decoder, Gpt2, Gpt2Options, LanguageModel,
    Pretrained, Vit, VitOptions, beam_search,
};
use isograd_nn::{Forward, Init, Metadata, Module, StateDict, save};
use std::fs;
use std::path::Path;

const GPT2: Gpt2Options = Gpt2Options { vocab: 11, context: 8, layers: 2, heads: 2, width: 4, dropout: 0.5 };

fn llama() -> CausalLmOptions {
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 4 };
    CausalLmOptions {
        vocab: 11,
        context: 8,
        layers: 2,
        heads: 2,
        key_heads: 1,
        head_width: None,
        width: 4,
        hidden: 6,
        rotary: Rotary { scaling, ..Rotary::new(10_000.0) },
        tied: true,
        ..CausalLmOptions::llama2_7b()
    }
}

fn bert() -> BertOptions {
    BertOptions { vocab: 11, context: 8, layers: 1, heads: 2, width: 4, hidden: 6, ..BertOptions::base() }
}

fn vit() -> VitOptions {
    VitOptions { image: 4, patch: 2, classes: 3, layers: 1, heads: 2, width: 4, hidden: 6, ..VitOptions::base() }
}

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn init(seed: u64) -> Init {
    Init::new(&cpu()).seed(seed)
}

fn tokens(rows: &[&[i64]]) -> Tensor {
    Tensor::from_vec(rows.concat(), (rows.len(), rows[0].len()), &cpu()).unwrap()
}

fn bits(model: &dyn Module) -> Vec<(String, Vec<u8>)> {
    model.state_dict().into_iter().map(|(name, t)| (name, t.to_bytes().unwrap())).collect()
}

fn refused<T>(result: Result<T>, kind: Kind, part: &str) {
    let error: Error = result.err().expect("an error");
    assert!(error.kind() == kind && error.to_string().contains(part), "{error}, expected {kind:?} with {part}");
}

#[test]
fn folders_come_back() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join("new").join(name);
    let first = Gpt2::new(&GPT2, &init(1))?;
    first.save(path("gpt2"))?;
    let again = Gpt2::load(path("gpt2"), &init(2))?;
    assert_eq!((again.options(), bits(&again)), (GPT2, bits(&first)));
    for tied in [true, false] {
        let first = CausalLm::new(&CausalLmOptions { tied, ..llama() }, &init(1))?;
        first.save(path("llama"))?;
        let again = CausalLm::load(path("llama"), &init(2))?;
        let options = CausalLmOptions { head_width: Some(2), ..first.options() };
        assert_eq!((again.options(), bits(&again)), (options, bits(&first)));
    }
    let first = Bert::new(&bert(), &init(1))?;
    first.save(path("bert"))?;
    let again = Bert::load(path("bert"), &init(2))?;
    assert_eq!((again.options(), bits(&again)), (bert(), bits(&first)));
    let first = Vit::new(&vit(), &init(1))?;
    first.save(path("vit"))?;
    let again = Vit::load(path("vit"), &init(2))?;
    assert_eq!((again.options(), bits(&again)), (vit(), bits(&first)));
    refused(Gpt2::load(path("llama"), &init(1)), Kind::Format, r#"model_type is "llama", expected "gpt2""#);
    refused(Gpt2::load(path("nothing"), &init(1)), Kind::Io, "config.json");
    Ok(())
}

/// Names as in files of older versions: no prefix, masks as tensors, the table twice, and norms with gamma and beta.
/// Activations that are computed again give the same loss and gradients, with the same draws of dropout.
#[test]
fn blocks_are_computed_again() -> Result<()> {
    fn gradients<M: LanguageModel + Module>(make: impl Fn() -> Result<M>, recomputes: bool) -> Result<Vec<Vec<u8>>> {
        let model = make()?;
        model.recompute_activations(recomputes)?;
        let x = tokens(&[&[1, 5, 3, 0, 9], &[2, 2, 7, 10, 4]]);
        let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&x.flatten(0, 1)?)?;
        loss.backward()?;
        let found = model.parameters().into_iter().map(|p| p.grad().expect("a gradient").to_bytes());
        found.chain([loss.to_bytes()]).collect()
    }
    let gpt2 = || Gpt2::new(&GPT2, &init(3));
    assert_eq!(gradients(gpt2, true)?, gradients(gpt2, false)?);
    let llama = || CausalLm::new(&llama(), &init(3));
    assert_eq!(gradients(llama, true)?, gradients(llama, false)?);
    fn of_encoders(recomputes: bool) -> Result<Vec<Vec<u8>>> {
        let (bert, vit) = (Bert::new(&bert(), &init(3))?, Vit::new(&vit(), &init(3))?);
        let x = tokens(&[&[1, 5, 3, 0, 9], &[2, 2, 7, 10, 4]]);
        let VitOptions { image, channels, .. } = vit.options();
        let images = Tensor::arange(2 * channels * image * image, &cpu())?.cast(DType::F32)?.sin()?;
        let images = images.reshape((2, channels, image, image))?;
        let mut found = Vec::new();
        bert.recompute_activations(recomputes)?;
        vit.recompute_activations(recomputes)?;
        for loss in [bert.forward(&x)?.square()?.sum(..)?, vit.forward(&images)?.square()?.sum(..)?] {
            loss.backward()?;
            found.push(loss.to_bytes()?);
        }
        let gradients = bert.parameters().into_iter().chain(vit.parameters()).filter_map(|p| p.grad());
        found.extend(gradients.map(|dx| dx.to_bytes()).collect::<Result<Vec<_>>>()?);
        Ok(found)
    }
    assert_eq!(of_encoders(true)?, of_encoders(false)?);
    Ok(())
}

#[test]
fn other_names_of_files_are_known() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("any.safetensors");
    let write = |state: StateDict| save(&file, &state, &Metadata::new());
    let model = Gpt2::new(&GPT2, &init(1))?;
    let mut state: StateDict =
        model.state_dict().into_iter().map(|(name, t)| (name.replace("transformer.", ""), t)).collect();
    state.insert("h.0.attn.bias".into(), Tensor::zeros((1, 1, 8, 8), DType::U8, &cpu())?);
    state.insert("lm_head.weight".into(), state["wte.weight"].clone());
    write(state.clone())?;
    let other = Gpt2::new(&GPT2, &init(2))?;
    other.load_weights(&file)?;
    assert_eq!(bits(&other), bits(&model));
    // Nothing changes if one is missing, or if two are the same.
    let before = bits(&Gpt2::new(&GPT2, &init(3))?);
    let other = Gpt2::new(&GPT2, &init(3))?;
    let mut twice = state.clone();
    twice.insert("transformer.wte.weight".into(), state["wte.weight"].clone());
    write(twice)?;
    refused(other.load_weights(&file), Kind::Value, "several tensors are transformer.wte.weight");
    state.remove("h.1.ln_1.bias");
    write(state)?;
    refused(other.load_weights(&file), Kind::Value, "transformer.h.1.ln_1.bias is missing");
    assert_eq!(bits(&other), before);

    let model = Bert::new(&bert(), &init(1))?;
    let old = |name: &str| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        format!("bert.{name}")
    };
    write(model.state_dict().into_iter().map(|(name, t)| (old(&name), t)).collect())?;
    let other = Bert::new(&bert(), &init(2))?;
    other.load_weights(&file)?;
    assert_eq!(bits(&other), bits(&model));
    Ok(())
}

#[test]
fn weights_of_16_bits_become_those_of_the_model() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("low.safetensors");
    let model = Gpt2::new(&GPT2, &init(1))?;
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let low: StateDict =
            model.state_dict().into_iter().map(|(name, t)| Ok((name, t.cast(dtype)?))).collect::<Result<_>>()?;
        save(&file, &low, &Metadata::new())?;
        let other = Gpt2::new(&GPT2, &init(2))?;
        other.load_weights(&file)?;
        for (name, t) in other.state_dict() {
            assert_eq!(t.to_vec::<f32>()?, low[&name].cast(DType::F32)?.to_vec::<f32>()?, "{name} from {dtype}");
        }
    }
    Ok(())
}

fn write_config(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn configurations_that_a_network_does_not_have_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let with = |from: &str, to: &str| {
        Gpt2::new(&GPT2, &init(1))?.save(folder.path())?;
        write_config(folder.path(), from, to);
        Gpt2Options::read(folder.path())
    };
    refused(with("gelu_new", "relu"), Kind::Format, r#"activation_function is "relu""#);
    refused(with(r#""n_inner": null"#, r#""n_inner": 17"#), Kind::Format, "n_inner is 17, expected 16");
    refused(with(r#""n_layer": 2"#, r#""n_layer": -2"#), Kind::Format, "n_layer is -2");
    refused(with(r#""n_layer": 2,"#, ""), Kind::Format, "n_layer is missing");
    refused(with("{", ""), Kind::Format, "not a configuration");
    let with = |from: &str, to: &str| {
        CausalLm::new(&llama(), &init(1))?.save(folder.path())?;
        write_config(folder.path(), from, to);
        CausalLmOptions::read(folder.path())
    };
    refused(with("llama3", "half"), Kind::Format, r#"rope_type is "half", expected default, linear, dynamic, llama3"#);
    refused(with(r#""factor": 8.0,"#, ""), Kind::Format, "factor is null");
    assert_eq!(with(r#""llama3""#, r#""linear""#)?.rotary.scaling, RotaryScaling::Linear(8.0));
    assert_eq!(with(r#""llama3""#, r#""default""#)?.rotary.scaling, RotaryScaling::Default);
    // Both in one object, as version 5 writes them.
    let text = r#""rope_parameters": { "rope_type": "default", "rope_theta": 7.0 }, "unused""#;
    let options = with(r#""rope_scaling""#, text)?;
    assert_eq!(options.rotary, Rotary::new(7.0));
    Ok(())
}

#[test]
fn rotary_options_are_used_or_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let with = |from: &str, to: &str| {
        CausalLm::new(&llama(), &init(1))?.save(folder.path())?;
        write_config(folder.path(), from, to);
        CausalLmOptions::read(folder.path())
    };
    for (from, to, part) in [
        (r#""rope_type": "llama3""#, r#""rope_type": null"#, "rope_type is null, expected a type that has "),
        (r#""factor": 8.0"#, r#""factor": 0"#, "factor is 0, expected a number above 0"),
        (r#""factor": 8.0"#, r#""factor": -2.0"#, "factor is -2.0, expected a number above 0"),
        (r#""factor": 8.0"#, r#""factor": 8.0, "mscale": 1"#, "mscale is 1, expected none"),
        (r#""low_freq_factor": 1.0"#, r#""low_freq_factor": 4.0"#, "low_freq_factor is 4.0, expected less than 4"),
        (r#""rope_theta": 10000.0"#, r#""rope_theta": 0"#, "rope_theta is 0, expected a number above 0"),
        (
            r#""rope_theta": 10000.0"#,
            r#""partial_rotary_factor": 0"#,
            "partial_rotary_factor is 0, expected a number above 0",
        ),
        (r#""rope_theta": 10000.0"#, r#""rope_parameters": { "rope_theta": 7.0 }"#, "none beside rope_parameters"),
        (r#""rms_norm_eps": 0.00001"#, r#""rms_norm_eps": -1"#, "rms_norm_eps is -1"),
    ] {
        refused(with(from, to), Kind::Format, part);
    }
    assert_eq!(with(r#""rope_theta": 10000.0"#, r#""partial_rotary_factor": 1.0"#)?.rotary, llama().rotary);
    for options in [
        CausalLmOptions { rotary: Rotary::new(0.0), ..llama() },
        CausalLmOptions { rotary: Rotary { scaling: RotaryScaling::Linear(-2.0), ..Rotary::new(1e4) }, ..llama() },
    ] {
        refused(CausalLm::new(&options, &init(1)), Kind::Attr, "expected numbers above 0");
    }
    Ok(())
}

#[test]
fn options_that_the_weights_do_not_have_end_before_the_memory() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    Gpt2::new(&GPT2, &init(1))?.save(path)?;
    for (from, to) in [
        (r#""n_layer": 2"#, r#""n_layer": 2000000000"#),
        (r#""n_embd": 4"#, r#""n_embd": 2000000000"#),
        (r#""vocab_size": 11"#, r#""vocab_size": 2000000000"#),
    ] {
        write_config(path, from, to);
        refused(Gpt2::load(path, &init(1)), Kind::Value, "is more than what the file of the weights has");
        write_config(path, to, from);
    }
    // A table that is computed.
    CausalLm::new(&llama(), &init(1))?.save(path)?;
    write_config(path, r#""max_position_embeddings": 8"#, r#""max_position_embeddings": 2000000000"#);
    refused(CausalLm::load(path, &init(1)), Kind::Value, "is more than what the file of the weights has");
    write_config(path, "2000000000", "99999999999999999999");
    refused(CausalLm::load(path, &init(1)), Kind::Format, "expected a whole number of 31 bits");
    Bert::new(&bert(), &init(1))?.save(path)?;
    write_config(path, r#""num_hidden_layers": 1"#, r#""num_hidden_layers": 2000000000"#);
    refused(Bert::load(path, &init(1)), Kind::Value, "is more than what the file of the weights has");
    Vit::new(&vit(), &init(1))?.save(path)?;
    write_config(path, r#""intermediate_size": 6"#, r#""intermediate_size": 2000000000"#);
    refused(Vit::load(path, &init(1)), Kind::Value, "is more than what the file of the weights has");
    // Loaded parameters are not drawn.
    Gpt2::new(&GPT2, &init(1))?.save(path)?;
    let init = init(5);
    let before = init.rng().state();
    Gpt2::load(path, &init)?;
    assert_eq!(init.rng().state(), before);
    Ok(())
}

#[test]
fn a_tied_model_loads_from_either_of_two_names_and_refuses_two_that_differ() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    fn check<M: Pretrained>(model: &M, other: &M, file: &Path, table: &str) -> Result<()> {
        let mut state = model.state_dict();
        let head = state.remove(table).expect("a table");
        state.insert("lm_head.weight".into(), head.clone());
        save(file, &state, &Metadata::new())?;
        other.load_weights(file)?;
        assert_eq!(bits(other), bits(model));
        state.insert(table.into(), head.copy()?);
        save(file, &state, &Metadata::new())?;
        other.load_weights(file)?;
        state.insert("lm_head.weight".into(), head.add_scalar(1.0)?);
        save(file, &state, &Metadata::new())?;
        refused(other.load_weights(file), Kind::Value, &format!("lm_head.weight and {table} differ"));
        Ok(())
    }
    let gpt2 = |seed| Gpt2::new(&GPT2, &init(seed));
    check(&gpt2(1)?, &gpt2(2)?, &file, "transformer.wte.weight")?;
    let llama = |seed| CausalLm::new(&llama(), &init(seed));
    check(&llama(1)?, &llama(2)?, &file, "model.embed_tokens.weight")
}

#[test]
fn a_bert_without_a_pooler_is_loaded() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let first = Bert::new(&bert(), &init(1))?;
    first.save(folder.path())?;
    let mut state = first.state_dict();
    state.retain(|name, _| !name.starts_with("pooler."));
    save(folder.path().join("model.safetensors"), &state, &Metadata::new())?;
    let loaded = Bert::load(folder.path(), &init(2))?;
    first.eval();
    loaded.eval();
    let x = tokens(&[&[1, 2, 3]]);
    let features = loaded.forward(&x)?;
    assert_eq!(features.to_bytes()?, first.forward(&x)?.to_bytes()?);
    refused(loaded.pooled(&features), Kind::Value, "this network has no pooler");
    loaded.save(folder.path())?;
    assert_eq!(Bert::load(folder.path(), &init(3))?.options(), BertOptions { has_pooler: false, ..bert() });
    Ok(())
}

#[test]
fn positions_end_at_the_context() -> Result<()> {
    let long = tokens(&[&[1, 2, 3, 4, 5, 6, 7, 8, 9]]);
    let models: [(&dyn LanguageModel, &str); 2] =
        [(&Gpt2::new(&GPT2, &init(1))?, "gpt2"), (&CausalLm::new(&llama(), &init(1))?, "causal_lm")];
    for (model, name) in models {
        refused(model.forward(&long), Kind::Index, &format!("{name}: Index: 9 tokens follow 0, and the context is 8"));
        refused(model.forward(&long.flatten(0, 1)?), Kind::Shape, "expected [B, T]");
        let mut cache = model.cache(20);
        model.forward_cached(&long.narrow(1, 0, 6)?, &mut cache)?;
        refused(model.forward_cached(&long.narrow(1, 0, 3)?, &mut cache), Kind::Index, "3 tokens follow 6");
        let mut small = model.cache(5);
        refused(model.next_logits(&long.narrow(1, 0, 6)?, &mut small), Kind::Index, "there is room for 5");
        refused(model.next_logits(&long.narrow(1, 0, 0)?, &mut small), Kind::Shape, "no last position");
    }
    Ok(())
}

#[test]
fn a_cache_is_outside_of_the_tape_and_dropout_ends_in_evaluation() -> Result<()> {
    let model = Gpt2::new(&GPT2, &init(1))?;
    let x = tokens(&[&[1, 2, 3], &[4, 5, 6]]);
    assert_ne!(model.forward(&x)?.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
    model.eval();
    assert_eq!(model.forward(&x)?.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
    assert!(model.forward(&x)?.requires_grad());
    assert!(!model.forward_cached(&x, &mut model.cache(3))?.requires_grad());
    Ok(())
}

#[test]
fn wrong_extents_are_refused() -> Result<()> {
    refused(Gpt2::new(&Gpt2Options { heads: 3, ..GPT2 }, &init(1)), Kind::Attr, "3 heads do not divide the width 4");
    refused(CausalLm::new(&CausalLmOptions { key_heads: 3, ..llama() }, &init(1)), Kind::Attr, "each must divide");
    refused(CausalLm::new(&CausalLmOptions { head_width: Some(3), ..llama() }, &init(1)), Kind::Attr, "3 elements");
    refused(Bert::new(&BertOptions { heads: 0, ..bert() }, &init(1)), Kind::Attr, "0 heads");
    refused(Vit::new(&VitOptions { patch: 3, ..vit() }, &init(1)), Kind::Attr, "do not divide images of 4");
    let (model, x) = (Bert::new(&bert(), &init(1))?, tokens(&[&[1, 2, 3]]));
    let input = BertInput { attended: Some(x.clone()), ..BertInput::new(&x) };
    refused(model.forward_with(&input), Kind::Shape, "attended is i64 [1, 3], expected bool [1, 3]");
    let input = BertInput { segments: Some(tokens(&[&[0, 0]])), ..BertInput::new(&x) };
    refused(model.forward_with(&input), Kind::Shape, "segments are [1, 2]");
    refused(
        Vit::new(&vit(), &init(1))?.forward(&Tensor::zeros((1, 3, 4, 5), DType::F32, &cpu())?),
        Kind::Shape,
        "[N, 3",
    );
    Ok(())
}

#[test]
fn features_of_padding_do_not_reach_the_others() -> Result<()> {
    let model = Bert::new(&bert(), &init(1))?;
    model.eval();
    let attended = Tensor::from_slice(&[true, true, false], (1, 3), &cpu())?;
    let of = |last: i64| {
        let input = BertInput { attended: Some(attended.clone()), ..BertInput::new(&tokens(&[&[1, 2, last]])) };
        no_grad(|| model.forward_with(&input))?.narrow(1, 0, 2)?.to_vec::<f32>()
    };
    assert_eq!(of(3)?, of(9)?);
    Ok(())
}

/// The logarithms of the probabilities of the tokens that follow.
fn follow(model: &Gpt2, read: &[i64]) -> Result<Vec<f32>> {
    model.forward(&tokens(&[read]))?.select(1, -1)?.log_softmax(-1)?.to_vec()
}

#[test]
fn a_wide_search_finds_the_most_probable_text() -> Result<()> {
    let options = Gpt2Options { vocab: 5, dropout: 0.0, ..GPT2 };
    let model = Gpt2::new(&options, &init(3))?;
    // The initial weights are small, so that all tokens are nearly alike.
    model.parameters().iter().try_for_each(|t| no_grad(|| t.mul_(&t.full_like(4.0)?)))?;
    let prompt = [1, 4];
    let mut all = Vec::new();
    for a in 0..5 {
        for b in 0..5 {
            let log = [follow(&model, &prompt)?[a], follow(&model, &[1, 4, a as i64])?[b]];
            let last = follow(&model, &[1, 4, a as i64, b as i64])?;
            all.extend((0..5).map(|c| (f64::from(log[0] + log[1] + last[c]), vec![a as i64, b as i64, c as i64])));
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let search = BeamOptions { beams: 25, tokens: 3, ..BeamOptions::default() };
    let found = beam_search(&model, &tokens(&[&prompt]), &search)?;
    assert_eq!(found.len(), 25);
    for (beam, (log, text)) in found.iter().zip(&all).take(5) {
        assert!(beam.tokens == *text && (beam.log_probability - log).abs() < 1e-4, "{beam:?} {log} {text:?}");
        assert!((beam.score - log / 3.0).abs() < 1e-4, "{beam:?}");
    }
    // One beam takes the most probable token each time, as a decoder without temperature does.
    let greedy = beam_search(&model, &tokens(&[&prompt]), &BeamOptions { beams: 1, ..search.clone() })?;
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let mut decoder = Decoder::new(&model, 8, &sampling, Rng::new(1));
    let drawn = decoder.generate(&tokens(&[&prompt]), 3, &[])?;
    assert_eq!(drawn, [greedy[0].tokens.clone()]);
    assert!(beam_search(&model, &tokens(&[&prompt]), &BeamOptions { beams: 0, ..search }).is_err());
    Ok(())
}

#[test]
fn a_stop_ends_a_text_and_is_no_part_of_it() -> Result<()> {
    let options = Gpt2Options { vocab: 5, dropout: 0.0, ..GPT2 };
    let model = Gpt2::new(&options, &init(3))?;
    model.parameters().iter().try_for_each(|t| no_grad(|| t.mul_(&t.full_like(4.0)?)))?;
    let prompts = tokens(&[&[1, 4], &[0, 2]]);
    let generate = |stops: &[i64]| -> Result<Vec<Vec<i64>>> {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Decoder::new(&model, 8, &sampling, Rng::new(1)).generate(&prompts, 6, stops)
    };
    let whole = generate(&[])?;
    assert_eq!(whole.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6]);
    for stop in 0..5 {
        let until = |text: &Vec<i64>| text.iter().copied().take_while(|&token| token != stop).collect::<Vec<_>>();
        assert_eq!(generate(&[stop])?, whole.iter().map(until).collect::<Vec<_>>());
    }
    let first = follow(&model, &[1, 4])?;
    for stop in 0..5i64 {
        let options = BeamOptions { beams: 3, tokens: 2, stops: vec![stop], length_penalty: 0.0 };
        let found = beam_search(&model, &tokens(&[&[1, 4]]), &options)?;
        assert!(found.iter().all(|beam| !beam.tokens.contains(&stop)), "{found:?}");
        // The empty text has the probability of the stop.
        let empty = found.iter().find(|beam| beam.tokens.is_empty());
        let wanted = f64::from(first[stop as usize]);
        assert!(empty.is_none_or(|beam| (beam.log_probability - wanted).abs() < 1e-5), "{found:?}");
    }
    Ok(())
}
