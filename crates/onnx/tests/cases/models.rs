//! Networks, with symbolic batches: run with the batch of the examples, and with others.

use super::{Case, cpu, fill, integers};
use isograd_core::ops::RecurrentWeights;
use isograd_core::{DType, Result, Tensor};
use isograd_models::{
    Bert, BertInput, BertOptions, CausalLm, CausalLmOptions, Gpt2, Gpt2Options, LeNet, MobileNetV2, MobileNetV2Options,
    Recurrence, RecurrentModel, RecurrentModelOptions, ResNet, ResNetOptions, Stem, UNet, UNetOptions, Vit, VitOptions,
};
use isograd_nn::{
    Embedding, Forward, Gru, Init, Linear, Lstm, Module, RecurrentOptions, Relu, Rnn, Sequential, Visitor,
};
use std::sync::Arc;

/// A module that a function uses as well.
struct Shared<M>(Arc<M>);

impl<M: Module> Module for Shared<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}

/// A module in evaluation, with other numbers than 0 and 1 in its buffers.
fn ready<M: Module>(module: M) -> Result<Arc<M>> {
    module.eval();
    let state = module.state_dict();
    let with_numbers = state.iter().map(|(name, t)| {
        let is_statistic = name.contains("running");
        let range = if name.ends_with("var") { [0.5, 1.5] } else { [-0.3, 0.3] };
        Ok((name.clone(), if is_statistic { fill(t.shape(), 3, range) } else { t.clone() }))
    });
    module.load_state_dict(&with_numbers.collect::<Result<_>>()?)?;
    Ok(Arc::new(module))
}

fn of<M: Module + Send + Sync + 'static>(
    name: &str,
    module: M,
    inputs: Vec<Tensor>,
    f: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Case> {
    let module = ready(module)?;
    let own = module.clone();
    Ok(Case::new(name, inputs, move |x| f(&own, x)).of(Shared(module)))
}

/// A function of one tensor, for a batch of 4 and of 1.
fn layer<M: Module + Forward + Send + Sync + 'static>(name: &str, module: M, x: Tensor) -> Result<Case> {
    let one = x.narrow(0, 0, 1)?.copy()?;
    Ok(of(name, module, vec![x], |module, x| Ok(vec![module.forward(&x[0])?]))?.run(vec![one]))
}

fn image(extents: [usize; 3], n: usize) -> Tensor {
    fill((n, extents[0], extents[1], extents[2]), 1, [-1.0, 1.0])
}

/// The hidden states of sequences `[T, B, I]` of given lengths, and classes of each.
struct Tagger {
    lstm: Lstm,
    classes: Linear,
}

impl Module for Tagger {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("lstm", &self.lstm);
        visitor.part("classes", &self.classes);
    }
}

pub fn cases() -> Vec<Case> {
    all().expect("the networks are made")
}

fn all() -> Result<Vec<Case>> {
    let init = Init::new(&cpu()).seed(7);
    let mlp = Sequential::new().push(Linear::new(6, 16, &init)?).push(Relu).push(Linear::new(16, 3, &init)?);
    let resnet = ResNetOptions { classes: 10, stem: Stem::Cifar, ..ResNetOptions::default() };
    let gpt2 = Gpt2Options { vocab: 50, context: 16, layers: 2, heads: 2, width: 16, dropout: 0.1 };
    let bert = BertOptions {
        has_pooler: true,
        vocab: 50,
        context: 16,
        segments: 2,
        layers: 2,
        heads: 2,
        width: 16,
        hidden: 32,
        dropout: 0.1,
        eps: 1e-5,
    };
    let vit = VitOptions {
        image: 16,
        patch: 8,
        channels: 3,
        classes: 5,
        layers: 2,
        heads: 2,
        width: 16,
        hidden: 32,
        dropout: 0.1,
        eps: 1e-6,
    };
    let tokens = integers((4, 7), 1, 50);
    let recurrent =
        |recurrence| RecurrentModelOptions { recurrence, vocab: 50, embedding: 8, hidden: 12, layers: 2, dropout: 0.2 };
    let llama = CausalLmOptions {
        vocab: 50,
        context: 16,
        layers: 2,
        heads: 4,
        key_heads: 2,
        head_width: None,
        width: 16,
        hidden: 24,
        ..CausalLmOptions::llama3_1b()
    };
    let tagger = Tagger {
        lstm: Lstm::with_options(
            5,
            6,
            &RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() },
            &init,
        )?,
        classes: Linear::new(12, 4, &init)?,
    };
    let sequences = |b: usize| fill((8, b, 5), 2, [-1.0, 1.0]);
    let lengths = |v: &[i64]| Tensor::from_slice(v, v.len(), &cpu());
    Ok(vec![
        layer("mlp", mlp, fill((4, 6), 1, [-1.0, 1.0]))?,
        layer("lenet", LeNet::new(1, 10, &init)?, image([1, 28, 28], 4))?,
        layer("resnet18", ResNet::resnet18(&resnet, &init)?, image([3, 32, 32], 2))?,
        layer("mobilenet", MobileNetV2::new(&MobileNetV2Options::default(), &init)?, image([3, 64, 64], 2))?,
        layer(
            "unet",
            UNet::new(&UNetOptions { channels: 3, classes: 2, width: 4, depth: 2 }, &init)?,
            image([3, 16, 16], 4),
        )?,
        layer("vit", Vit::new(&vit, &init)?, image([3, 16, 16], 4))?,
        layer("gpt2", Gpt2::new(&gpt2, &init)?, tokens.clone())?,
        layer("llama", CausalLm::new(&llama, &init)?, tokens.clone())?,
        layer("bert", Bert::new(&bert, &init)?, tokens.clone())?,
        of("bert_with_padding", Bert::new(&bert, &init)?, vec![tokens.clone(), tokens.lt_scalar(40)?], |bert, x| {
            let input = BertInput { attended: Some(x[1].clone()), ..BertInput::new(&x[0]) };
            Ok(vec![bert.forward_with(&input)?])
        })?,
        layer("lstm_language_model", RecurrentModel::new(&recurrent(Recurrence::Lstm), &init)?, tokens.clone())?,
        layer("gru_language_model", RecurrentModel::new(&recurrent(Recurrence::Gru), &init)?, tokens.clone())?,
        of("lstm_tagger", tagger, vec![sequences(3), lengths(&[8, 3, 5])?], |tagger, x| {
            let (y, (h, c)) = tagger.lstm.run(&x[0], Some(&x[1]), None)?;
            Ok(vec![tagger.classes.forward(&y)?, h, c])
        })?
        .batch_at(&[Some(1), Some(0)])
        .run(vec![sequences(1), lengths(&[6])?]),
        of("gru", Gru::new(5, 6, &init)?, vec![sequences(3)], |gru, x| Ok(vec![gru.forward(&x[0])?]))?
            .batch_at(&[Some(1)]),
        of("rnn_relu", Rnn::new(5, 6, isograd_core::ops::Nonlinearity::Relu, &init)?, vec![sequences(3)], |rnn, x| {
            Ok(vec![rnn.forward(&x[0])?])
        })?
        .batch_at(&[Some(1)]),
        of(
            "lstm_cell",
            Linear::new(5, 24, &init)?,
            vec![fill((3, 5), 1, [-1.0, 1.0]), fill((3, 6), 2, [-1.0, 1.0])],
            |w, x| {
                let hidden = fill((24, 6), 5, [-0.5, 0.5]);
                let parameters = w.parameters();
                let weights = RecurrentWeights {
                    input_bias: Some(&parameters[1]),
                    ..RecurrentWeights::new(&parameters[0], &hidden)
                };
                let (h, c) = x[0].lstm_cell(&x[1], &x[1].mul_scalar(0.5)?, weights)?;
                Ok(vec![h, c])
            },
        )?,
        of("embedding", Embedding::new(10, 4, &init)?, vec![integers((4, 3), 1, 10)], |table, x| {
            Ok(vec![table.forward(&x[0])?, x[0].cast(DType::F32)?])
        })?,
    ])
}
