//! Parts of networks: all tell when they run, and layers take the places of others.

use isograd_core::{DType, Device, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_models::{
    Bert, BertInput, BertOptions, CausalLm, CausalLmOptions, Dcgan, Discriminator, Generator, Gpt2, Gpt2Options, LeNet,
    Mlp, MobileNetV2, MobileNetV2Options, Recurrence, RecurrentModel, RecurrentModelOptions, ResNet, ResNetOptions,
    Stem, Tabular, TabularOptions, UNet, UNetOptions, Vit, VitOptions,
};
use isograd_nn::{AdamW, Forward, Init, Layer, Module, Optimizer, Summary};

fn init() -> Result<Init> {
    Ok(Init::new(&Device::cpu()?).seed(3))
}

/// Each part of the model runs in `run`, and so does the model.
fn tells(model: &dyn Layer, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let summary = Summary::of(model, run)?;
    let silent: Vec<&str> = summary.layers.iter().filter(|l| l.calls == 0).map(|l| l.name.as_str()).collect();
    assert!(silent.is_empty(), "{} does not tell that these run: {silent:?}", summary.layers[0].kind);
    Ok(())
}

#[test]
fn all_parts_of_all_networks_tell_when_they_run() -> Result<()> {
    let (init, device) = (init()?, Device::cpu()?);
    let image = |channels: usize, extent: usize| Tensor::ones((1, channels, extent, extent), DType::F32, &device);
    let of_image = |model: &dyn Layer, x: Tensor| tells(model, || model.forward(&x).map(drop));
    of_image(&LeNet::new(1, 10, &init)?, image(1, 28)?)?;
    for stem in [Stem::ImageNet, Stem::Cifar] {
        let options = ResNetOptions { classes: 10, stem, ..ResNetOptions::default() };
        of_image(&ResNet::resnet18(&options, &init)?, image(3, 32)?)?;
    }
    of_image(&ResNet::resnet50(&ResNetOptions::default(), &init)?, image(3, 32)?)?;
    of_image(&MobileNetV2::new(&MobileNetV2Options::default(), &init)?, image(3, 32)?)?;
    of_image(&UNet::new(&UNetOptions { width: 2, depth: 2, ..UNetOptions::default() }, &init)?, image(1, 8)?)?;
    let extents = Dcgan { generator: 2, discriminator: 2, ..Dcgan::default() };
    of_image(&Generator::new(&extents, &init)?, image(100, 1)?)?;
    of_image(&Discriminator::new(&extents, &init)?, image(3, 64)?)?;
    of_image(&Vit::new(&VitOptions { image: 32, layers: 2, ..VitOptions::tiny() }, &init)?, image(3, 32)?)?;

    let tokens = Tensor::from_slice(&[1i64, 2, 3], (1, 3), &device)?;
    let gpt2 = Gpt2::new(&GPT2, &init)?;
    of_image(&gpt2, tokens.clone())?;
    for tied in [true, false] {
        let options = CausalLmOptions {
            vocab: 9,
            context: 4,
            layers: 2,
            width: 64,
            hidden: 8,
            tied,
            ..CausalLmOptions::llama3_1b()
        };
        let options = CausalLmOptions { heads: 4, key_heads: 2, head_width: None, ..options };
        of_image(&CausalLm::new(&options, &init)?, tokens.clone())?;
    }
    for recurrence in [Recurrence::Lstm, Recurrence::Gru] {
        let options = RecurrentModelOptions { recurrence, embedding: 4, hidden: 5, ..RecurrentModelOptions::new(9) };
        of_image(&RecurrentModel::new(&options, &init)?, tokens.clone())?;
    }
    let options = BertOptions { vocab: 9, layers: 2, heads: 2, width: 8, hidden: 16, ..BertOptions::base() };
    let bert = Bert::new(&options, &init)?;
    for segments in [None, Some(tokens.zeros_like()?)] {
        let input = BertInput { segments, ..BertInput::new(&tokens) };
        tells(&bert, || bert.pooled(&bert.forward_with(&input)?).map(drop))?;
    }

    of_image(&Mlp::new(3, &[4, 5], 2, &init)?, Tensor::ones((2, 3), DType::F32, &device)?)?;
    let options = TabularOptions { numbers: 1, categories: vec![3, 2], hidden: vec![4], outputs: 2 };
    let tabular = Tabular::new(&options, &init)?;
    let (numbers, categories) =
        (Tensor::ones((2, 1), DType::F32, &device)?, Tensor::zeros((2, 2), DType::I64, &device)?);
    let summary = Summary::of(&tabular, || tabular.forward(&numbers, &categories))?;
    assert!(summary.layers.iter().all(|layer| layer.calls > 0), "{summary}");
    Ok(())
}

const GPT2: Gpt2Options = Gpt2Options { vocab: 12, context: 8, layers: 2, heads: 2, width: 8, dropout: 0.0 };

/// `base(x) + x a b`, where a and b have a low rank. Hu et al. 2021, arXiv 2106.09685.
#[derive(Module)]
struct Adapter {
    base: Box<dyn Layer>,
    a: Tensor,
    b: Tensor,
}

impl Adapter {
    fn new(base: Box<dyn Layer>, [input, output]: [usize; 2], rank: usize, init: &Init) -> Result<Adapter> {
        Ok(Adapter { base, a: init.normal((input, rank), 0.0, 0.02)?, b: init.zeros((rank, output))? })
    }
}

impl Forward for Adapter {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.base.forward(x)?.add(&x.matmul(&self.a)?.matmul(&self.b)?)
    }
}

#[test]
fn adapters_learn_on_the_projections_of_a_frozen_gpt2() -> Result<()> {
    let (init, device) = (init()?, Device::cpu()?);
    let mut model = Gpt2::new(&GPT2, &init)?;
    let tokens = Tensor::randint((4, 9), 0, GPT2.vocab as i64, &device, &Rng::new(1))?;
    let (x, y) = (tokens.narrow(1, 0, 8)?.contiguous()?, tokens.narrow(1, 1, 8)?.flatten(0, 1)?);
    let before = model.forward(&x)?.to_vec::<f32>()?;
    let base = model.state_dict();

    model.freeze();
    model.replace_matching("*.c_attn", &mut |_, layer| {
        let extents = [GPT2.width, 3 * GPT2.width];
        Ok(Box::new(Adapter::new(layer, extents, 2, &init)?))
    })?;
    // An adapter begins as nothing.
    assert_eq!(model.forward(&x)?.to_vec::<f32>()?, before);
    assert_eq!(model.num_parameters(), GPT2.layers * 2 * (GPT2.width + 3 * GPT2.width));

    let loss = |model: &Gpt2| model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y);
    let first = loss(&model)?.item::<f64>()?;
    let mut optimizer = AdamW::new(&model).lr(0.1);
    for _ in 0..30 {
        loss(&model)?.backward()?;
        optimizer.step()?;
    }
    let last = loss(&model)?.item::<f64>()?;
    // The frozen table of tokens, whose elements are near 0.02, bounds the logits.
    assert!(last < first - 0.03, "{first} to {last}");
    for (name, t) in model.state_dict() {
        if let Some(old) = base.get(&name.replace("c_attn.base", "c_attn")) {
            assert_eq!(t.to_vec::<f32>()?, old.to_vec::<f32>()?, "{name}");
        }
    }
    // The error names the places.
    let error = model.replace_matching("*.q_proj", &mut |_, layer| Ok(layer)).unwrap_err().to_string();
    assert!(error.contains("transformer.h.1.mlp.c_fc") && error.contains("c_attn.base"), "{error}");
    Ok(())
}
