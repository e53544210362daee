//! Networks against PyTorch: names and numbers of parameters, and results of small inputs. `golden.py` writes the file.

use isograd_core::{DType, Device, Result, Shape, Tensor, no_grad};
use isograd_cpu as _;
use isograd_models::{
    Dcgan, Discriminator, Generator, LeNet, MobileNetV2, MobileNetV2Options, Recurrence, RecurrentModel,
    RecurrentModelOptions, ResNet, ResNetOptions, Stem, UNet, UNetOptions,
};
use isograd_nn::{Forward, Init, Layer, Module, StateDict};
use serde_json::Value;

/// Numbers from `low` to `high`, as in `golden.py`.
fn fill(shape: &Shape, k: usize, [low, high]: [f64; 2]) -> Result<Tensor> {
    let number = |i: usize| ((7919 * i + 104_729 * k) % 2003) as f64 / 2003.0 * (high - low) + low;
    Tensor::from_vec((0..shape.numel()).map(number).collect(), shape, &Device::cpu()?)
}

/// The state of a network, by the positions of its names.
fn filled(state: &StateDict, names: &[&str]) -> Result<StateDict> {
    let of = |(name, t): (&String, &Tensor)| {
        let k = names.iter().position(|other| other == name).expect("the name is PyTorch's");
        let is_factor = name.ends_with("running_var") || name.ends_with("weight");
        let bound = (6.0 / t.dims()[1..].iter().product::<usize>() as f64).sqrt();
        let range = match t.rank() {
            1 if is_factor => [0.5, 1.5],
            1 => [-0.5, 0.5],
            _ => [-bound, bound],
        };
        Ok((name.clone(), fill(t.shape(), k, range)?))
    };
    let is_number = |name: &str| name.ends_with("num_batches_tracked");
    let counts = state.iter().filter(|(name, _)| is_number(name)).map(|(name, t)| Ok((name.clone(), t.clone())));
    state.iter().filter(|(name, _)| !is_number(name)).map(of).chain(counts).collect()
}

fn compare(name: &str, network: &dyn Layer) -> Result<()> {
    let all: Value = serde_json::from_str(include_str!("golden.json")).expect("the file is JSON");
    let expected = &all[name];
    let names: Vec<&str> = expected["names"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let state = network.state_dict();
    let (mut ours, mut theirs) = (state.keys().map(String::as_str).collect::<Vec<_>>(), names.clone());
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs, "{name}");
    assert_eq!(Some(network.num_parameters() as u64), expected["parameters"].as_u64(), "{name}");
    let Some(input) = expected["input"].as_array() else { return Ok(()) };
    let shape: Vec<usize> = input.iter().filter_map(|v| Some(v.as_u64()? as usize)).collect();
    network.load_state_dict(&filled(&state, &names)?)?;
    network.eval();
    let y = no_grad(|| network.forward(&fill(&Shape::from(shape), 1, [-1.0, 1.0])?))?.to_vec::<f64>()?;
    assert_eq!(Some(y.len() as u64), expected["outputs"].as_u64(), "{name}");
    let step = expected["step"].as_u64().expect("a step") as usize;
    let numbers = expected["output"].as_array().expect("numbers");
    for (i, (got, expected)) in y.iter().step_by(step).zip(numbers).enumerate() {
        let expected = expected.as_f64().expect("a number");
        assert!((got - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{name}, {i}: {got}, expected {expected}");
    }
    Ok(())
}

fn init() -> Result<Init> {
    Ok(Init::new(&Device::cpu()?).dtype(DType::F64))
}

#[test]
fn lenet() -> Result<()> {
    compare("lenet", &LeNet::new(1, 10, &init()?)?)
}

#[test]
fn residual_networks() -> Result<()> {
    let (image_net, init) = (ResNetOptions::default(), init()?);
    compare("resnet18", &ResNet::resnet18(&image_net, &init)?)?;
    let cifar = ResNetOptions { classes: 10, stem: Stem::Cifar, ..image_net };
    compare("resnet18_cifar", &ResNet::resnet18(&cifar, &init)?)?;
    compare("resnet34", &ResNet::resnet34(&image_net, &init)?)?;
    compare("resnet50", &ResNet::resnet50(&image_net, &init)?)
}

#[test]
fn mobile_net() -> Result<()> {
    compare("mobilenet_v2", &MobileNetV2::new(&MobileNetV2Options::default(), &init()?)?)
}

#[test]
fn u_net() -> Result<()> {
    compare("unet", &UNet::new(&UNetOptions::default(), &init()?)?)?;
    compare("unet_small", &UNet::new(&UNetOptions { channels: 3, classes: 2, width: 4, depth: 2 }, &init()?)?)
}

#[test]
fn halves_of_a_dcgan() -> Result<()> {
    let (large, init) = (Dcgan::default(), init()?);
    let small = Dcgan { channels: 1, latent: 5, generator: 2, discriminator: 2 };
    compare("generator", &Generator::new(&large, &init)?)?;
    compare("generator_small", &Generator::new(&small, &init)?)?;
    compare("discriminator", &Discriminator::new(&large, &init)?)?;
    compare("discriminator_small", &Discriminator::new(&small, &init)?)
}

#[test]
fn a_small_image_of_cifar_keeps_its_extents_until_the_second_stage() -> Result<()> {
    let options = ResNetOptions { classes: 10, stem: Stem::Cifar, ..ResNetOptions::default() };
    let network = ResNet::resnet18(&options, &Init::new(&Device::cpu()?))?;
    let x = Tensor::zeros((1, 3, 32, 32), DType::F32, &Device::cpu()?)?;
    assert_eq!(no_grad(|| network.features(&x))?.dims(), [1, 512, 4, 4]);
    Ok(())
}

/// A model of 11 tokens, which are made of numbers from -1 to 1.
#[derive(Module)]
struct OfNumbers(#[module(flatten)] RecurrentModel);

impl Forward for OfNumbers {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(&x.add_scalar(1.0)?.mul_scalar(5.5)?.cast(DType::I64)?)
    }
}

fn recurrent(recurrence: Recurrence) -> Result<RecurrentModel> {
    let options = RecurrentModelOptions { recurrence, embedding: 6, hidden: 5, ..RecurrentModelOptions::new(11) };
    RecurrentModel::new(&options, &init()?)
}

#[test]
fn recurrent_language_models() -> Result<()> {
    compare("lstm_small", &OfNumbers(recurrent(Recurrence::Lstm)?))?;
    compare("gru_small", &OfNumbers(recurrent(Recurrence::Gru)?))
}

fn assert_near(a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!(a.shape(), b.shape());
    // Products of other extents add in another order.
    let error = a.sub(b)?.abs()?.amax(..)?.item::<f64>()?;
    assert!(error < 1e-13, "{error}");
    Ok(())
}

/// A text in parts, by the state after each, has the logits of the whole.
#[test]
fn a_recurrent_language_model_goes_on_from_its_state() -> Result<()> {
    for recurrence in [Recurrence::Lstm, Recurrence::Gru] {
        let model = recurrent(recurrence)?;
        model.eval();
        let tokens = Tensor::from_vec((0..14).map(|i| i * 7 % 11).collect::<Vec<i64>>(), (2, 7), &Device::cpu()?)?;
        let whole = model.forward(&tokens)?;
        let (first, state) = model.run(&tokens.narrow(1, 0, 4)?, None)?;
        let (second, last) = model.run(&tokens.narrow(1, 4, 3)?, Some(&state.detach()))?;
        assert_near(&Tensor::concat(&[&first, &second], 1)?, &whole)?;
        let (logits, same) = model.next_logits(&tokens.narrow(1, 4, 3)?, Some(&state))?;
        assert_near(&logits, &whole.select(1, -1)?)?;
        assert_near(&same.h, &last.h)?;
        assert_eq!((same.h.dims(), same.c.is_some()), (&[2, 2, 5][..], recurrence == Recurrence::Lstm));
        let none = model.forward(&tokens.narrow(1, 0, 0)?).unwrap_err();
        assert!(none.message().contains("expected [B, T] with T of 1 or more"), "{none}");
    }
    let gru = recurrent(Recurrence::Gru)?.run(&Tensor::zeros((1, 1), DType::I64, &Device::cpu()?)?, None)?.1;
    let error = recurrent(Recurrence::Lstm)?.run(&Tensor::zeros((1, 1), DType::I64, &Device::cpu()?)?, Some(&gru));
    assert!(error.unwrap_err().message().contains("the state has no cell states"));
    Ok(())
}
