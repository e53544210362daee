//! Layers of attention against PyTorch's, with the states that it saves (attention.py), and their modes and errors.

use crate::common::{cpu, values};
use isograd_core::ops::{Activation, Approximate, Rotary};
use isograd_core::{DType, Kind, Result, Tensor, autocast};
use isograd_nn::{
    AttentionMask, CausalSelfAttention, DecoderMasks, Forward, Gate, GatedMlp, Init, KvCache, Module,
    MultiheadAttention, Rotations, SelfAttentionOptions, StateDict, TransformerDecoder, TransformerEncoder,
    TransformerEncoderLayer, TransformerOptions, load, sinusoidal_positions,
};

const E: usize = 4;

fn init() -> Init {
    Init::new(&cpu()).seed(1).dtype(DType::F64)
}

/// The tensors of the file whose names begin with `prefix`, without it.
fn part(prefix: &str) -> StateDict {
    let file = load(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attention.safetensors"), &cpu()).unwrap().tensors;
    file.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_string(), t.clone()))).collect()
}

fn assert_near(what: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (g, e) in values(got).iter().zip(values(expected)) {
        assert!((g - e).abs() <= 1e-10 * (1.0 + e.abs()), "{what}: got {g}, expected {e}");
    }
}

/// Compares result and gradients of a layer with those of the file.
fn compare(name: &str, module: &dyn Module, inputs: &[&str], call: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    let of = part(&format!("{name}."));
    module.load_state_dict(&part(&format!("{name}.state.")))?;
    let leaves: Vec<Tensor> = inputs.iter().map(|input| of[*input].require_grad()).collect::<Result<_>>()?;
    let y = call(&leaves)?;
    assert_near(&format!("{name}: y"), &y, &of["y"]);
    y.mul(&of["dy"])?.sum(..)?.backward()?;
    let named = inputs.iter().map(|input| input.to_string()).zip(leaves).chain(module.named_parameters());
    for (key, leaf) in named {
        assert_near(&format!("{name}: the gradient of {key}"), &leaf.grad().unwrap(), &of[&format!("grad.{key}")]);
    }
    Ok(())
}

const OF_THREE: [&str; 3] = ["query", "key", "value"];

#[test]
fn multihead_attention_is_pytorchs() -> Result<()> {
    let layer = MultiheadAttention::new(E, 2, 0.0, &init())?;
    let plain = AttentionMask::default();
    compare("packed", &layer, &OF_THREE, |x| layer.forward(&x[0], &x[1], &x[2], &plain))?;
    let layer = MultiheadAttention::with_widths(E, [3, 2], 2, 0.0, &init())?;
    compare("widths", &layer, &OF_THREE, |x| layer.forward(&x[0], &x[1], &x[2], &plain))
}

#[test]
fn masks_are_true_for_what_is_ignored_as_in_pytorch() -> Result<()> {
    let bits = |rows: &[&str]| {
        let all: Vec<bool> = rows.iter().flat_map(|row| row.chars().map(|c| c == '1')).collect();
        Tensor::from_vec(all, (rows.len(), rows[0].len()), &cpu())
    };
    let mask = AttentionMask {
        attention: Some(bits(&["01001", "00111", "10000"])?),
        key_padding: Some(bits(&["01001", "00011"])?),
        ..AttentionMask::default()
    };
    let layer = MultiheadAttention::new(E, 2, 0.0, &init())?;
    compare("masked", &layer, &OF_THREE, |x| layer.forward(&x[0], &x[1], &x[2], &mask))
}

fn options(name: &str) -> TransformerOptions {
    let plain = TransformerOptions { hidden: 6, dropout: 0.0, ..TransformerOptions::new(E, 2) };
    match name {
        "after" => plain,
        _ => {
            TransformerOptions { norm_first: true, activation: Activation::Gelu(Approximate::None), eps: 0.1, ..plain }
        }
    }
}

#[test]
fn encoders_and_decoders_are_pytorchs() -> Result<()> {
    let ignored = [false, true, false, false, true, false, false, false, true, true];
    let memory = Some(Tensor::from_slice(&ignored, (2, 5), &cpu())?);
    let masks = DecoderMasks {
        own: AttentionMask::causal(),
        memory: AttentionMask { key_padding: memory, ..AttentionMask::default() },
    };
    for name in ["after", "first"] {
        let encoder = TransformerEncoder::new(2, &options(name), &init())?;
        compare(&format!("encoder_{name}"), &encoder, &["x"], |x| encoder.forward(&x[0]))?;
        let decoder = TransformerDecoder::new(1, &options(name), &init())?;
        let call = |x: &[Tensor]| decoder.forward(&x[0], &x[1], &masks);
        compare(&format!("decoder_{name}"), &decoder, &["x", "memory"], call)?;
    }
    Ok(())
}

#[test]
fn causal_self_attention_turns_and_shares_heads() -> Result<()> {
    let options =
        SelfAttentionOptions { key_heads: 1, bias: false, rotary: Some((8, 1e4)), ..SelfAttentionOptions::new(2) };
    let layer = CausalSelfAttention::new(E, &options, &init())?;
    compare("causal", &layer, &["x"], |x| layer.forward(&x[0]))
}

#[test]
fn dropout_of_attention_ends_in_evaluation() -> Result<()> {
    let options = TransformerOptions { hidden: 8, dropout: 0.5, ..TransformerOptions::new(E, 2) };
    let layer = TransformerEncoderLayer::new(&options, &init())?;
    let x = init().normal((2, 3, E), 0.0, 1.0)?;
    let twice = || Ok::<_, isograd_core::Error>((values(&layer.forward(&x)?), values(&layer.forward(&x)?)));
    let (a, b) = twice()?;
    assert_ne!(a, b);
    layer.eval();
    let (a, b) = twice()?;
    assert_eq!(a, b);
    Ok(())
}

#[test]
fn transformers_run_with_mixed_precision() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let x = init.normal((2, 3, E), 0.0, 1.0)?;
    for name in ["after", "first"] {
        let encoder = TransformerEncoder::new(2, &options(name), &init)?;
        let decoder = TransformerDecoder::new(1, &options(name), &init)?;
        let run = || decoder.forward(&x, &encoder.forward(&x)?, &DecoderMasks::default());
        let (wide, low) = (run()?, autocast(DType::BF16, run)?);
        assert_eq!(low.dtype(), DType::F32, "{name}");
        let far = values(&wide).iter().zip(values(&low)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far > 0.0 && far < 0.1, "{name}: {far}");
        low.sum(..)?.backward()?;
        assert!(encoder.parameters().iter().all(|p| p.grad().is_some_and(|g| g.dtype() == DType::F32)), "{name}");
    }
    Ok(())
}

#[test]
fn positions_are_sines_and_cosines() -> Result<()> {
    let table = sinusoidal_positions(3, 4, &cpu())?;
    let of = |p: f64| [p.sin(), p.cos(), (p / 100.0).sin(), (p / 100.0).cos()];
    for (got, expected) in values(&table).iter().zip([0.0, 1.0, 2.0].into_iter().flat_map(of)) {
        assert!((got - expected).abs() < 1e-7, "{got} {expected}");
    }
    assert_eq!(sinusoidal_positions(3, 5, &cpu()).unwrap_err().kind(), Kind::Attr);
    Ok(())
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let refused = [
        MultiheadAttention::new(E, 3, 0.0, &init()).map(drop),
        MultiheadAttention::new(E, 0, 0.0, &init()).map(drop),
        CausalSelfAttention::new(E, &SelfAttentionOptions::new(3), &init()).map(drop),
        CausalSelfAttention::new(8, &SelfAttentionOptions { key_heads: 3, ..SelfAttentionOptions::new(4) }, &init())
            .map(drop),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), Kind::Attr);
    }
}

/// Keys are shared, turned and wider than the width divided by the heads, and a query attends to itself and two before.
#[test]
fn cached_attention_is_that_of_the_whole_sequence() -> Result<()> {
    let options = SelfAttentionOptions {
        key_heads: 2,
        head_width: Some(6),
        rotary: Some((7, 1e4)),
        window: Some(2),
        ..SelfAttentionOptions::new(4)
    };
    let layer = CausalSelfAttention::new(8, &options, &init())?;
    assert_eq!([&layer.q_proj, &layer.k_proj].map(|l| l.parameters()[0].dims().to_vec()), [[24, 8], [12, 8]]);
    let x = init().normal((3, 7, 8), 0.0, 1.0)?;
    let whole = layer.forward(&x)?;
    let mut cache = KvCache::new(1, 9);
    let read = |cache: &mut KvCache, x: &Tensor| -> Result<Tensor> {
        let new = cache.begin([x.dims()[0], x.dims()[1]], x.device())?;
        let part = layer.forward_cached(x, &mut cache.layer(0, &new))?;
        cache.finish(new)?;
        Ok(part)
    };
    for (start, length) in [(0, 1), (1, 3), (4, 1), (5, 2)] {
        let part = read(&mut cache, &x.narrow(1, start, length)?)?;
        assert!(!part.requires_grad());
        assert_near(&format!("{length} from {start}"), &part, &whole.narrow(1, start, length)?);
    }
    // Sequences that go on from several positions.
    cache.truncate_each(&[6, 2, 4])?;
    let at = |sequence: usize, start: usize| x.narrow(0, sequence, 1)?.narrow(1, start, 1);
    let next = Tensor::concat(&[&at(0, 6)?, &at(1, 2)?, &at(2, 4)?], 0)?;
    let part = read(&mut cache, &next)?;
    for (sequence, start) in [(0, 6), (1, 2), (2, 4)] {
        let alone = whole.narrow(0, sequence, 1)?.narrow(1, start, 1)?;
        assert_near(&format!("sequence {sequence}"), &part.narrow(0, sequence, 1)?, &alone);
    }
    assert_eq!(cache.lengths(), [7, 3, 5]);
    // The rotary tables have 7 positions.
    assert_eq!(read(&mut cache, &x.narrow(1, 0, 1)?).unwrap_err().kind(), Kind::Index);
    assert_eq!(cache.lengths(), [7, 3, 5]);
    Ok(())
}

/// Appends to one layer.
fn append(cache: &mut KvCache, k: &Tensor, v: &Tensor) -> Result<[Tensor; 2]> {
    let new = cache.begin([k.dims()[0], k.dims()[2]], k.device())?;
    let all = cache.layer(0, &new).append(k, v)?;
    cache.finish(new)?;
    Ok(all)
}

#[test]
fn a_cache_keeps_its_state_after_an_error() -> Result<()> {
    let part = |shape: [usize; 4], dtype: DType| Tensor::ones(shape, dtype, &cpu());
    let (k, v) = (part([2, 1, 2, 3], DType::F32)?, part([2, 1, 2, 5], DType::F32)?);
    let mut cache = KvCache::new(1, 5);
    let [all, _] = append(&mut cache, &k, &v)?;
    assert_eq!((all.dims(), cache.len(), cache.capacity(), cache.room()), (&[2, 1, 2, 3][..], 2, 5, 5));
    let refused = [
        (part([2, 1, 4, 3], DType::F32)?, part([2, 1, 4, 5], DType::F32)?, Kind::Index),
        (part([3, 1, 1, 3], DType::F32)?, part([3, 1, 1, 5], DType::F32)?, Kind::Shape),
        (part([2, 1, 1, 3], DType::F64)?, part([2, 1, 1, 5], DType::F64)?, Kind::Shape),
        (part([2, 1, 1, 3], DType::F32)?, part([2, 1, 2, 5], DType::F32)?, Kind::Shape),
    ];
    for (k, v, kind) in refused {
        assert_eq!(append(&mut cache, &k, &v).unwrap_err().kind(), kind);
        assert_eq!(cache.lengths(), [2, 2]);
    }
    let [k, v] = append(&mut cache, &k.mul_scalar(2.0)?, &v)?;
    assert_eq!(values(&k.select(0, 1)?.flatten(0, -1)?), [[1.0; 6], [2.0; 6]].concat());
    assert_eq!(v.dims(), [2, 1, 4, 5]);
    assert_eq!(cache.truncate_each(&[1]).unwrap_err().kind(), Kind::Shape);
    // An empty cache takes another batch.
    cache.truncate(9)?;
    assert_eq!(cache.len(), 4);
    cache.truncate(0)?;
    let other = part([1, 2, 1, 4], DType::F64)?;
    assert_eq!(append(&mut cache, &other, &other)?[1].dims(), [1, 2, 1, 4]);
    Ok(())
}

#[test]
fn a_cache_grows_and_keeps_what_it_has() -> Result<()> {
    let part = |first: usize, t: usize| {
        let x = Tensor::arange(t, &cpu())?.add_scalar(first as i64)?.cast(DType::F32)?;
        x.reshape((1, 1, t, 1))
    };
    let mut cache = KvCache::new(1, 1000);
    append(&mut cache, &part(0, 250)?, &part(0, 250)?)?;
    assert_eq!(cache.room(), 256);
    assert!(!cache.reserve(6)?);
    append(&mut cache, &part(250, 6)?, &part(250, 6)?)?;
    assert!(cache.reserve(1)?);
    assert_eq!(cache.room(), 512);
    let mut last = append(&mut cache, &part(256, 400)?, &part(256, 400)?)?;
    assert_eq!(cache.room(), 1000);
    // The last position, which is written by its number.
    cache.truncate(655)?;
    last = append(&mut cache, &last[0].narrow(2, 655, 1)?.copy()?, &part(655, 1)?)?;
    let expected: Vec<f64> = (0..656).map(f64::from).collect();
    assert_eq!((values(&last[0].flatten(0, -1)?), values(&last[1].flatten(0, -1)?)), (expected.clone(), expected));
    assert_eq!(cache.reserve(345).unwrap_err().kind(), Kind::Index);
    Ok(())
}

/// A captured step appends by the positions on the device.
#[test]
fn a_cache_counts_on_the_device_within_a_step() -> Result<()> {
    let cache = std::cell::RefCell::new(KvCache::new(1, 8));
    let x = Tensor::ones([1, 1, 1, 2], DType::F32, &cpu())?;
    let mut step = cpu().capture(|x: Tensor| append(&mut cache.borrow_mut(), &x, &x).map(|[k, _]| k));
    assert_eq!(step.run(x.clone()).unwrap_err().kind(), Kind::Value);
    append(&mut cache.borrow_mut(), &x, &x)?;
    for i in 2..=4 {
        let k = step.run(x.mul_scalar(f64::from(i))?)?;
        cache.borrow_mut().advance(1);
        assert_eq!((k.dims(), cache.borrow().len()), (&[1, 1, 8, 2][..], i as usize));
        assert_eq!(values(&k.select(3, 0)?.flatten(0, -1)?)[..i as usize], [1.0, 2.0, 3.0, 4.0][..i as usize]);
    }
    Ok(())
}

#[test]
fn rotations_have_rates_of_their_own() -> Result<()> {
    let x = init().normal((1, 1, 3, 4), 0.0, 1.0)?;
    let plain = Rotations::new(5, 4, 1e4, &cpu())?;
    let rates = Rotations::with_rates(5, &[1.0, 0.01], 1.0, &cpu())?;
    let from = |start: i64| -> Result<Rotary> {
        Ok(Rotary { positions: Some(Tensor::arange(3, &cpu())?.add_scalar(start)?), ..Rotary::default() })
    };
    let (from_2, from_3) = (from(2)?, from(3)?);
    assert_near("rates", &rates.apply(&x, &x, &from_2)?.0, &plain.apply(&x, &x, &from_2)?.0);
    // Position 2 of pair 0 turns by 2 radians.
    let (row, turned) = (values(&x), values(&plain.apply(&x, &x, &from_2)?.0));
    let [c, s] = [2f64.cos(), 2f64.sin()];
    assert!((turned[0] - (row[0] * c - row[2] * s)).abs() < 1e-6, "{row:?} {turned:?}");
    assert_eq!(plain.apply(&x, &x, &from_3).unwrap_err().kind(), Kind::Index);
    Ok(())
}

#[test]
fn swiglu_is_its_formula() -> Result<()> {
    let layer = GatedMlp::new(4, 6, Gate::Silu, &init())?;
    let x = init().normal((2, 3, 4), 0.0, 1.0)?;
    let weights = layer.parameters();
    let of = |i: usize, x: &Tensor| x.matmul(&weights[i].t()?);
    let (gate, up) = (of(0, &x)?, of(1, &x)?);
    let expected = of(2, &gate.mul(&gate.sigmoid()?)?.mul(&up)?)?;
    assert_near("swiglu", &layer.forward(&x)?, &expected);
    let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]);
    Ok(())
}
