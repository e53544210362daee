//! Values of other crates: serde's and ndarray's.

use isograd::data::csv;
use isograd::models::causal::{Rotary, RotaryScaling};
use isograd::models::{
    BeamOptions, BertOptions, CausalLmOptions, Gpt2Options, MobileNetV2Options, RecurrentModelOptions, ResNetOptions,
    TabularOptions, UNetOptions, VitOptions,
};
use isograd::ops::{EmbeddingOptions, IndexReduce, ScanOptions};
use isograd::parallel::ParallelOptions;
use isograd::prelude::*;
use isograd::{Notation, PrintOptions};
use ndarray::{Array1, Array2, Array3, ArrayD, array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, to_string};
use std::fmt::Debug;

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(options: T) {
    let text = to_string(&options).unwrap();
    assert_eq!(from_str::<T>(&text).unwrap(), options, "{text}");
}

macro_rules! kept {
    ($($options:expr),+ $(,)?) => {
        $(check($options);)+
    };
}

#[test]
fn options_are_the_same_after_they_were_written_and_read() {
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 4 };
    let rotary = Rotary { scaling, ..Rotary::new(10_000.0) };
    kept!(
        Gpt2Options { layers: 3, ..Gpt2Options::small() },
        CausalLmOptions { rotary, windows: vec![None, Some(4)], ..CausalLmOptions::llama2_7b() },
        BertOptions::base(),
        VitOptions::base(),
        ResNetOptions { classes: 7, ..ResNetOptions::default() },
        UNetOptions { depth: 2, ..UNetOptions::default() },
        MobileNetV2Options { dropout: 0.5, ..MobileNetV2Options::default() },
        RecurrentModelOptions::new(9),
        TabularOptions { numbers: 2, categories: vec![3], hidden: vec![4], outputs: 1 },
        BeamOptions { stops: vec![0], ..BeamOptions::default() },
        TransformerOptions::new(8, 2),
        SelfAttentionOptions { window: Some(3), ..SelfAttentionOptions::new(2) },
        RecurrentOptions { layers: 2, ..RecurrentOptions::default() },
        NormOptions { momentum: None, ..NormOptions::default() },
        GcnOptions { bias: false, ..GcnOptions::default() },
        SageOptions { aggr: IndexReduce::Sum, ..SageOptions::default() },
        GatOptions { heads: 4, ..GatOptions::default() },
        LoadOptions { names: LoadNames::Shared, floats: LoadFloats::Cast },
        EmbeddingOptions::default(),
        ScanOptions::default(),
        Sampling { top_k: 3, ..Sampling::default() },
        PrintOptions { notation: Notation::Scientific, ..PrintOptions::default() },
        ParallelOptions { reduce: Some(DType::BF16), ..ParallelOptions::default() },
        csv::Options { targets: vec![csv::Column::Name("price".into())], ..csv::Options::default() },
        csv::EncodingOptions { one_hot: vec![csv::Column::Number(2)] },
    );
    // Options that a file lacks have their defaults.
    let read: ResNetOptions = from_str("{\"classes\": 10}").unwrap();
    assert_eq!(read, ResNetOptions { classes: 10, ..ResNetOptions::default() });
    assert_eq!(to_string(&DType::BF16).unwrap(), "\"bf16\"");
}

#[test]
fn arrays_of_ndarray_become_tensors_and_come_back() -> Result<()> {
    let device = Device::cpu()?;
    let rows = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let t = Tensor::from_ndarray(&rows, &device)?;
    assert_eq!((t.dims(), t.to_vec::<f32>()?), (&[2, 3][..], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    // A transposed array has another order in memory.
    let turned = Tensor::from_ndarray(&rows.t(), &device)?;
    assert_eq!((turned.dims(), turned.to_vec::<f32>()?), (&[3, 2][..], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    assert_eq!(Array2::<f32>::try_from(&turned.t()?)?, rows);
    assert_eq!(ArrayD::<f32>::try_from(&t)?.shape(), [2, 3]);
    let positions = Tensor::arange(3, &device)?;
    assert_eq!(Array1::<i64>::try_from(&positions)?, array![0, 1, 2]);
    let refused = Array3::<f32>::try_from(&t).unwrap_err();
    assert!(refused.kind() == isograd::Kind::Shape && refused.message().contains("[2, 3]"), "{refused}");
    assert_eq!(Array2::<i64>::try_from(&t).unwrap_err().kind(), isograd::Kind::Dtype);
    Ok(())
}

#[test]
fn dimensions_and_positions_are_any_integers() -> Result<()> {
    let x = Tensor::arange(6, &Device::cpu()?)?.reshape((2, 3))?;
    let (usize_dim, i64_dim, i32_dim, u32_dim): (usize, i64, i32, u32) = (1, -1, -1, 1);
    let sums = [x.sum(usize_dim)?, x.sum(i64_dim)?, x.sum(i32_dim)?, x.sum(u32_dim)?, x.sum([usize_dim])?];
    assert!(sums.iter().all(|sum| sum.to_vec::<i64>().is_ok_and(|v| v == [3, 12])));
    assert_eq!(x.select(usize_dim, x.rank() - 2)?.to_vec::<i64>()?, [0, 3]);
    assert_eq!(x.permute(&[1usize, 0])?.dims(), [3, 2]);
    assert_eq!(x.narrow(u32_dim, 1, 2)?.dims(), x.narrow(i64_dim, 1, 2)?.dims());
    // A number that no position holds is outside, and does not wrap.
    assert!(x.sum(u64::MAX).is_err() && x.select(0, u64::MAX).is_err() && x.select(0, i64::MIN).is_err());
    Ok(())
}
