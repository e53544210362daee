//! Recurrent layers: names, modes, states, and training.

use crate::common::{assert_close, cpu, values};
use isograd_core::ops::Nonlinearity;
use isograd_core::{DType, Kind, Result, Rng, Tensor};
use isograd_nn::{
    Adam, ConvLstm, ConvLstmCell, Forward, Gru, GruCell, Init, Linear, Lstm, LstmCell, Module, Optimizer,
    RecurrentOptions, Rnn, RnnCell,
};

fn init() -> Init {
    Init::new(&cpu()).seed(3).dtype(DType::F64)
}

fn normal(shape: &[usize]) -> Result<Tensor> {
    Tensor::randn(shape, 0.0, 1.0, DType::F64, &cpu(), &Rng::new(shape.iter().sum::<usize>() as u64))
}

fn shapes(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, t)| format!("{name} {}", t.shape())).collect()
}

#[test]
fn parameters_have_the_names_and_shapes_of_pytorch() -> Result<()> {
    let options = RecurrentOptions { layers: 2, bidirectional: true, projection: Some(2), ..Default::default() };
    let expected = [
        "weight_ih_l0 [12, 5]",
        "weight_hh_l0 [12, 2]",
        "bias_ih_l0 [12]",
        "bias_hh_l0 [12]",
        "weight_hr_l0 [2, 3]",
        "weight_ih_l0_reverse [12, 5]",
        "weight_hh_l0_reverse [12, 2]",
        "bias_ih_l0_reverse [12]",
        "bias_hh_l0_reverse [12]",
        "weight_hr_l0_reverse [2, 3]",
        "weight_ih_l1 [12, 4]",
    ];
    assert_eq!(shapes(&Lstm::with_options(5, 3, &options, &init())?)[..11], expected);
    let options = RecurrentOptions { bias: false, ..Default::default() };
    assert_eq!(shapes(&Gru::with_options(5, 3, &options, &init())?), ["weight_ih_l0 [9, 5]", "weight_hh_l0 [9, 3]"]);
    let cell = ["weight_ih [4, 5]", "weight_hh [4, 4]", "bias_ih [4]", "bias_hh [4]"];
    assert_eq!(shapes(&RnnCell::new(5, 4, Nonlinearity::Relu, &init())?), cell);
    let cell = ConvLstmCell::new(2, 3, [3, 5], &init())?;
    assert_eq!(shapes(&cell), ["weight_ih [12, 2, 3, 5]", "weight_hh [12, 3, 3, 5]", "bias [12]"]);
    let bound = 1.0 / 4f64.sqrt();
    let cell = GruCell::new(50, 4, &init())?;
    let all: Vec<f64> = cell.parameters().iter().flat_map(values).collect();
    assert!(all.iter().all(|v| v.abs() <= bound) && all.iter().any(|v| v.abs() > 0.95 * bound));
    Ok(())
}

#[test]
fn layers_are_the_steps_of_their_cells() -> Result<()> {
    let (lstm, cell) = (Lstm::new(3, 4, &init())?, LstmCell::new(3, 4, &init())?);
    let state: isograd_nn::StateDict =
        lstm.state_dict().into_iter().map(|(name, t)| (name.trim_end_matches("_l0").to_string(), t)).collect();
    cell.load_state_dict(&state)?;
    let x = normal(&[3, 2, 3])?;
    let zeros = Tensor::zeros((2, 4), DType::F64, &cpu())?;
    let (mut h, mut c) = (zeros.clone(), zeros);
    let (y, (last, last_c)) = lstm.run(&x, None, None)?;
    for t in 0..3 {
        (h, c) = cell.run(&x.select(0, t)?, (&h, &c))?;
        assert_close(&values(&y.select(0, t)?), &values(&h), 1e-12);
    }
    assert_close(&values(&last), &values(&h), 1e-12);
    assert_close(&values(&last_c), &values(&c), 1e-12);
    Ok(())
}

#[test]
fn a_state_goes_on_where_it_ended() -> Result<()> {
    let options = RecurrentOptions { layers: 2, batch_first: true, ..Default::default() };
    let gru = Gru::with_options(3, 4, &options, &init())?;
    let x = normal(&[2, 6, 3])?;
    let (whole, end) = gru.run(&x, None, None)?;
    let (first, state) = gru.run(&x.narrow(1, 0, 4)?, None, None)?;
    let (second, last) = gru.run(&x.narrow(1, 4, 2)?, None, Some(&state.detach()))?;
    assert_close(&values(&Tensor::concat(&[&first, &second], 1)?), &values(&whole), 1e-12);
    assert_close(&values(&last), &values(&end), 1e-12);
    Ok(())
}

#[test]
fn a_sequence_needs_no_batch() -> Result<()> {
    for batch_first in [false, true] {
        let options = RecurrentOptions { bidirectional: true, batch_first, ..Default::default() };
        let rnn = Rnn::with_options(3, 4, Nonlinearity::Tanh, &options, &init())?;
        let x = normal(&[5, 3])?;
        let (y, last) = rnn.run(&x, None, None)?;
        assert_eq!((y.dims(), last.dims()), (&[5, 8][..], &[2, 4][..]));
        let (of_batch, _) =
            rnn.run(&x.unsqueeze(if batch_first { 0 } else { 1 })?, None, Some(&last.zeros_like()?.unsqueeze(1)?))?;
        assert_close(&values(&y), &values(&of_batch), 1e-12);
    }
    Ok(())
}

#[test]
fn dropout_is_between_layers_in_training() -> Result<()> {
    let x = normal(&[2, 1, 2])?;
    let run = |layers: usize, dropout: f64, training: bool| -> Result<Vec<f64>> {
        let options = RecurrentOptions { layers, dropout, ..Default::default() };
        let gru = Gru::with_options(2, 3, &options, &init())?;
        if !training {
            gru.eval();
        }
        Ok(values(&gru.forward(&x)?))
    };
    assert_eq!(run(1, 1.0, true)?, run(1, 0.0, true)?);
    assert_eq!(run(2, 1.0, false)?, run(2, 0.0, true)?);
    assert_ne!(run(2, 1.0, true)?, run(2, 0.0, true)?);
    Ok(())
}

#[test]
fn wrong_options_and_states_are_refused() -> Result<()> {
    let lstm = |options| Lstm::with_options(2, 3, &options, &init()).map(drop).unwrap_err().kind();
    let options = RecurrentOptions::default();
    assert_eq!(lstm(RecurrentOptions { layers: 0, ..options }), Kind::Attr);
    assert_eq!(lstm(RecurrentOptions { dropout: 1.5, ..options }), Kind::Attr);
    assert_eq!(lstm(RecurrentOptions { projection: Some(3), ..options }), Kind::Attr);
    let projected = Gru::with_options(2, 3, &RecurrentOptions { projection: Some(2), ..options }, &init());
    assert_eq!(projected.unwrap_err().kind(), Kind::Attr);
    let (gru, x) = (Gru::new(2, 3, &init())?, normal(&[4, 2, 2])?);
    assert_eq!(gru.run(&x, None, Some(&normal(&[2, 2, 3])?)).unwrap_err().kind(), Kind::Shape);
    assert_eq!(gru.forward(&normal(&[2])?).unwrap_err().kind(), Kind::Shape);
    Ok(())
}

/// The cross-entropy of a layer's tags falls to a tenth.
#[test]
fn a_tagger_learns_whether_it_has_seen_an_event() -> Result<()> {
    let init = Init::new(&cpu()).seed(1);
    let options = RecurrentOptions { batch_first: true, ..Default::default() };
    let (lstm, head) = (Lstm::with_options(1, 8, &options, &init)?, Linear::new(8, 2, &init)?);
    let parameters: Vec<Tensor> = lstm.parameters().into_iter().chain(head.parameters()).collect();
    let mut optimizer = Adam::from_parameters(parameters.clone()).lr(0.03);
    let (steps, rows) = (12, 16);
    let mut events = vec![0f32; rows * steps];
    let mut tags = vec![0i64; rows * steps];
    for b in 0..rows {
        let at = (b * 7) % (steps + 4);
        for t in 0..steps {
            events[b * steps + t] = (t == at) as u8 as f32;
            tags[b * steps + t] = (t >= at) as i64;
        }
    }
    let x = Tensor::from_vec(events, (rows, steps, 1), &cpu())?;
    let tags = Tensor::from_vec(tags, rows * steps, &cpu())?;
    let mut losses = Vec::new();
    for _ in 0..60 {
        let loss = head.forward(&lstm.forward(&x)?)?.reshape((rows * steps, 2))?.cross_entropy(&tags)?;
        parameters.iter().try_for_each(|p| p.set_grad(None))?;
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.item::<f64>()?);
    }
    assert!(losses[59] < 0.1 * losses[0], "{losses:?}");
    Ok(())
}

/// A dot that moves by one pixel a step: the error of the next image falls to a tenth.
#[test]
fn a_conv_lstm_learns_to_move_a_dot() -> Result<()> {
    let init = Init::new(&cpu()).seed(2);
    let layer = ConvLstm::new(1, 1, [3, 3], &init)?;
    let mut optimizer = Adam::new(&layer).lr(0.1);
    let (steps, size) = (5, 6);
    let mut images = vec![0f32; (steps + 1) * size * size];
    (0..=steps).for_each(|t| images[t * size * size + 2 * size + t] = 0.5);
    let all = Tensor::from_vec(images, (steps + 1, 1, 1, size, size), &cpu())?;
    let (x, next) = (all.narrow(0, 0, steps)?, all.narrow(0, 1, steps)?);
    let mut losses = Vec::new();
    for _ in 0..120 {
        let loss = layer.forward(&x)?.sub(&next)?.square()?.mean(..)?;
        layer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.item::<f64>()?);
    }
    assert!(losses[119] < 0.1 * losses[0], "{} to {}", losses[0], losses[119]);
    Ok(())
}
