//! A GGUF file whose linear layers keep their blocks, against the same file in floats.

use isograd_core::ops::Sampling;
use isograd_core::{DType, Device, Kind, Rng, Tensor, no_grad};
use isograd_cpu as _;
use isograd_models::causal::Table;
use isograd_models::{CausalLm, Decoder, Pretrained};
use isograd_nn::gguf::{self, TensorType, Value};
use isograd_nn::{Forward, Init, Module, StateDict, summary};
use std::collections::BTreeMap;
use std::path::Path;

const LAYERS: usize = 2;
const VOCAB: usize = 64;
const WIDTH: usize = 64;
const KEYS: usize = 32;
const HIDDEN: usize = 256;
const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

fn cpu() -> Device {
    Device::cpu().unwrap()
}

/// The type of a tensor: matrices have blocks, except those of some values.
fn kind_of(name: &str, t: &Tensor) -> TensorType {
    match name {
        _ if t.rank() == 1 => TensorType::F32,
        "blk.1.attn_v.weight" => TensorType::F16,
        _ if name.contains("ffn_down") => TensorType::Q4K,
        _ if name.contains("ffn") => TensorType::Q4_0,
        _ => TensorType::Q8_0,
    }
}

/// Writes a decoder of two layers, whose keys have one head of two, with these matrices for tokens.
fn write(path: &Path, of_tokens: &[&str]) {
    let (cpu, rng) = (cpu(), Rng::new(7));
    let matrix = |shape: [usize; 2]| Tensor::randn(shape, 0.0, 0.2, DType::F32, &cpu, &rng).unwrap();
    let ones = || Tensor::ones(WIDTH, DType::F32, &cpu).unwrap();
    let mut state = StateDict::from([("output_norm.weight".to_string(), ones())]);
    state.extend(of_tokens.iter().map(|name| (name.to_string(), matrix([VOCAB, WIDTH]))));
    for i in 0..LAYERS {
        for (name, shape) in [
            ("attn_q", [WIDTH, WIDTH]),
            ("attn_k", [KEYS, WIDTH]),
            ("attn_v", [KEYS, WIDTH]),
            ("attn_output", [WIDTH, WIDTH]),
            ("ffn_gate", [HIDDEN, WIDTH]),
            ("ffn_up", [HIDDEN, WIDTH]),
            ("ffn_down", [WIDTH, HIDDEN]),
        ] {
            state.insert(format!("blk.{i}.{name}.weight"), matrix(shape));
        }
        for name in ["attn_norm", "ffn_norm"] {
            state.insert(format!("blk.{i}.{name}.weight"), ones());
        }
    }
    let count = |n: usize| Value::U32(n as u32);
    let metadata: BTreeMap<String, Value> = [
        ("general.architecture", Value::from("llama")),
        ("llama.context_length", count(32)),
        ("llama.block_count", count(LAYERS)),
        ("llama.embedding_length", count(WIDTH)),
        ("llama.feed_forward_length", count(HIDDEN)),
        ("llama.attention.head_count", count(2)),
        ("llama.attention.head_count_kv", count(1)),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into();
    gguf::save(path, &state, &metadata, kind_of).unwrap();
}

/// The most likely tokens that follow a prompt.
fn greedy(model: &CausalLm, count: usize) -> Vec<i64> {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    no_grad(|| {
        let mut decoder = Decoder::new(model, 32, &sampling, Rng::new(1));
        let prompt = Tensor::from_slice(&[5i64, 9, 2, 40, 7, 1, 30, 31, 12, 3], (1, 10), &cpu())?;
        let mut tokens = vec![decoder.prompt(&prompt, None)?.item()?];
        while tokens.len() < count {
            tokens.push(decoder.next()?.item()?);
        }
        Ok::<_, isograd_core::Error>(tokens)
    })
    .unwrap()
}

#[test]
fn packed_and_unpacked_networks_write_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&path, &[TABLE, HEAD]);
    let init = Init::new(&cpu());
    let (packed, whole) = (CausalLm::load_quantized(&path, &init).unwrap(), CausalLm::load(&path, &init).unwrap());
    let kinds: BTreeMap<_, _> = packed.named_modules().into_iter().collect();
    let is_packed = |name: &str| kinds[name].ends_with("QuantizedLinear");
    assert!(["self_attn.q_proj", "mlp.down_proj"].iter().all(|name| is_packed(&format!("model.layers.0.{name}"))));
    assert!(is_packed("lm_head") && !is_packed("model.layers.1.self_attn.v_proj"));
    assert!(matches!(packed.model.embed_tokens, Table::Quantized(_)));
    assert_eq!(greedy(&packed, 20), greedy(&whole, 20));
    let tokens = Tensor::from_slice(&[3i64, 60, 1], (1, 3), &cpu()).unwrap();
    let [a, b] = [&packed, &whole].map(|model| model.forward(&tokens).unwrap());
    assert!(a.allclose(&b, 1e-4, 1e-4).unwrap());
    // The table is the weight of the last product, too.
    write(&path, &[TABLE]);
    let (packed, whole) = (CausalLm::load_quantized(&path, &init).unwrap(), CausalLm::load(&path, &init).unwrap());
    assert!(packed.lm_head.is_none());
    assert_eq!(greedy(&packed, 20), greedy(&whole, 20));
}

#[test]
fn packed_weights_are_no_parameters_and_keep_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&path, &[TABLE, HEAD]);
    let mut model = CausalLm::load_quantized(&path, &Init::new(&cpu())).unwrap();
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| !name.ends_with("down_proj.weight")));
    assert!(names.contains(&"model.layers.1.self_attn.v_proj.weight".to_string()));
    let name = "model.layers.0.mlp.down_proj.weight";
    let blocks = model.state_dict()[name].clone();
    let file = gguf::Gguf::open(&path).unwrap();
    assert_eq!((blocks.dtype(), blocks.dims()), (DType::U8, &[WIDTH, 144][..]));
    assert_eq!(blocks.to_bytes().unwrap(), file.tensors["blk.0.ffn_down.weight"].bytes());
    // Casts and copies leave the blocks as they are.
    let before = greedy(&model, 4);
    let clone = model.clone();
    assert_eq!(greedy(&clone, 4), before);
    model.to_dtype(DType::F64).unwrap();
    assert_eq!(model.state_dict()[name].to_bytes().unwrap(), blocks.to_bytes().unwrap());
    assert_eq!(greedy(&model, 4), before);
    // The gradient passes through packed layers to parameters below them.
    let tokens = Tensor::from_slice(&[3i64, 60, 1], (1, 3), &cpu()).unwrap();
    clone.forward(&tokens).unwrap().sum(..).unwrap().backward().unwrap();
    assert!(clone.parameters().iter().all(|t| t.grad().is_some()));
    assert!(summary(&clone, &tokens).unwrap().to_string().contains("QuantizedLinear"));
    // Folders of transformers have floats.
    let error = clone.save(folder.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.message().contains(".weight is quantised"), "{error}");
}
