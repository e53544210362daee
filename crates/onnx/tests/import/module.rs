//! A loaded model as a module: parameters, buffers, training, states.

use crate::build::*;
use isograd_core::{DType, Kind, Result, Tensor};
use isograd_nn::{ForwardHook, LoadOptions, Module, Optimizer, Sgd};
use isograd_onnx::{OnnxModel, Size, load_in_f64};
use std::cell::RefCell;
use std::rc::Rc;

/// A linear layer, a batch norm, dropout, and rows of a table.
fn network() -> Result<OnnxModel> {
    let nodes = [
        node("Gemm", "a w bias", "h", &[int("transB", 1)]),
        node("BatchNormalization", "h scale shift mean var", "n", &[]),
        node("Gather", "table rows", "g", &[]),
        node("Add", "n g", "s", &[]),
        node("Dropout", "s ratio", "d", &[]),
        node("Mul", "d factor", "y", &[]),
    ];
    let tensors = [
        tensor("w", &[1.0f32, 2.0, 3.0, 4.0], &[2, 2]),
        tensor("bias", &[0.5f32, -0.5], &[2]),
        tensor("scale", &[1.0f32, 2.0], &[2]),
        tensor("shift", &[0.0f32, 1.0], &[2]),
        tensor("mean", &[0.5f32, 0.5], &[2]),
        tensor("var", &[1.0f32, 4.0], &[2]),
        tensor("table", &[1.0f32, 2.0, 3.0, 4.0], &[2, 2]),
        tensor("rows", &[1i64, 0, 1], &[3]),
        tensor("ratio", &[0.5f32], &[]),
        tensor("factor", &[2.0f32], &[]),
    ];
    loaded(&model(15, graph("a", "y", &nodes, &tensors)))
}

fn x() -> Tensor {
    matrix(&[1.0, -1.0, 2.0, 0.5, -0.5, 3.0], [3, 2])
}

fn names(all: Vec<(String, Tensor)>) -> Vec<String> {
    all.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn floats_train_and_statistics_integers_and_single_numbers_do_not() -> Result<()> {
    let network = network()?;
    assert_eq!(names(network.named_parameters()), ["w", "bias", "scale", "shift", "table"]);
    assert_eq!(names(network.named_buffers()), ["mean", "var", "rows", "factor"]);
    Ok(())
}

#[test]
fn training_updates_statistics_and_drops() -> Result<()> {
    let network = network()?;
    let still = network.forward(&[x()])?.remove(0);
    assert!(still.allclose(&network.forward(&[x()])?[0], 0.0, 0.0)?);
    network.train();
    let y = network.forward(&[x()])?.remove(0).to_vec::<f32>()?;
    assert!(y.contains(&0.0) && y.iter().any(|v| *v != 0.0), "{y:?}");
    let state = network.state_dict();
    let h = x().linear(&state["w"], Some(&state["bias"]))?;
    let expected = vector(&[0.5, 0.5]).mul_scalar(0.9)?.add(&h.mean(0)?.mul_scalar(0.1)?)?;
    assert!(state["mean"].allclose(&expected, 1e-5, 1e-6)?);
    // Frozen norms keep their statistics.
    network.freeze();
    network.forward(&[x()])?;
    assert!(network.state_dict()["mean"].allclose(&expected, 1e-5, 1e-6)?);
    network.eval();
    assert!(!network.forward(&[x()])?[0].to_vec::<f32>()?.contains(&0.0));
    Ok(())
}

#[test]
fn an_optimizer_lowers_the_loss() -> Result<()> {
    let network = network()?;
    let mut optimizer = Sgd::new(&network).lr(0.01);
    let loss = || network.forward(&[x()])?[0].square()?.mean(..);
    let before = loss()?.item::<f32>()?;
    for _ in 0..20 {
        network.zero_grad();
        loss()?.backward()?;
        optimizer.step()?;
    }
    let after = loss()?.item::<f32>()?;
    assert!(after < 0.5 * before, "{before} {after}");
    Ok(())
}

#[test]
fn states_come_back_and_integers_of_the_graph_stay() -> Result<()> {
    let (one, other) = (network()?, network()?);
    one.parameters().iter().try_for_each(|t| isograd_core::no_grad(|| t.fill_(0.25)))?;
    assert!(!one.forward(&[x()])?[0].allclose(&other.forward(&[x()])?[0], 1e-3, 1e-3)?);
    other.load_state_dict(&one.state_dict())?;
    assert!(one.forward(&[x()])?[0].allclose(&other.forward(&[x()])?[0], 0.0, 0.0)?);
    let mut state = one.state_dict();
    state.insert("rows".into(), Tensor::from_vec(vec![0i64, 0, 0], 3, &cpu())?);
    let error = other.load_state_dict_with(&state, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Value);
    assert!(error.message().contains("rows has other integers"), "{error}");
    Ok(())
}

#[test]
fn a_clone_has_tensors_of_its_own() -> Result<()> {
    let network = network()?;
    let clone = network.clone();
    let before = network.forward(&[x()])?.remove(0);
    clone.parameters().iter().try_for_each(|t| isograd_core::no_grad(|| t.fill_(0.25)))?;
    assert!(network.forward(&[x()])?[0].allclose(&before, 0.0, 0.0)?);
    assert!(!clone.forward(&[x()])?[0].allclose(&before, 1e-3, 1e-3)?);
    Ok(())
}

#[test]
fn inputs_are_checked() -> Result<()> {
    let mut message = graph("image", "y", &[node("Relu", "image", "y", &[])], &[]);
    let shape = message.input[0].r#type.as_mut().and_then(|t| t.tensor_type.as_mut()).unwrap();
    let dim =
        |v: Option<i64>, p: Option<&str>| crate::proto::DimensionProto { dim_value: v, dim_param: p.map(Into::into) };
    shape.shape = Some(crate::proto::TensorShapeProto { dim: vec![dim(None, Some("N")), dim(Some(3), None)] });
    let model = loaded(&model(13, message))?;
    let port = &model.inputs()[0];
    assert_eq!(port.to_string(), "image float [N, 3]");
    assert_eq!(port.shape().unwrap(), [Size::Symbol("N".into()), Size::Fixed(3)]);
    let kind = |x: &[(&str, Tensor)]| model.run(x).unwrap_err().kind();
    let zeros = |shape: [usize; 2], dtype| Tensor::zeros(shape, dtype, &cpu()).unwrap();
    assert_eq!(kind(&[("image", zeros([2, 4], DType::F32))]), Kind::Shape);
    assert_eq!(kind(&[("image", zeros([2, 3], DType::F64))]), Kind::Dtype);
    assert_eq!(kind(&[("other", zeros([2, 3], DType::F32))]), Kind::Value);
    assert_eq!(kind(&[]), Kind::Value);
    let outputs = model.run(&[("image", zeros([5, 3], DType::F32))])?;
    assert_eq!((outputs[0].0.as_str(), outputs[0].1.dims()), ("y", &[5, 3][..]));
    Ok(())
}

#[test]
fn equal_parameters_that_an_exporter_wrote_once_are_several() -> Result<()> {
    let nodes = [
        node("Identity", "one", "two", &[]),
        node("Identity", "drawn", "tied", &[]),
        node("Mul", "x one", "a", &[]),
        node("Mul", "a two", "b", &[]),
        node("Mul", "b drawn", "c", &[]),
        node("Mul", "c tied", "y", &[]),
    ];
    let tensors = [tensor("one", &[1.0f32; 2], &[2]), tensor("drawn", &[0.5f32, 0.25], &[2])];
    let model = loaded(&model(17, graph("x", "y", &nodes, &tensors)))?;
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    // Numbers that differ are one tensor with two names.
    assert_eq!(names, ["one", "two", "drawn"]);
    let y = model.forward(&[vector(&[4.0, 8.0])])?.remove(0);
    assert_eq!(y.to_vec::<f32>()?, [1.0, 0.5]);
    Ok(())
}

#[test]
fn nodes_are_parts_with_hooks_that_an_adapter_needs() -> Result<()> {
    let network = network()?;
    let kinds: Vec<(String, &str)> = network.named_modules();
    assert!(kinds.contains(&("h".into(), "Gemm")) && kinds.contains(&("n".into(), "BatchNormalization")), "{kinds:?}");
    let before = network.forward(&[x()])?.remove(0);
    let (a, b) = (matrix(&[1.0, 2.0], [2, 1]).require_grad()?, matrix(&[0.0, 0.0], [1, 2]).require_grad()?);
    network.freeze();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (told, left, right) = (seen.clone(), a.clone(), b.clone());
    let hook = ForwardHook::register(&network, "h", move |call| {
        told.borrow_mut().push(format!("{} {} {}", call.name, call.kind, call.inputs.len()));
        call.output().add(&call.inputs[0].matmul(&left)?.matmul(&right)?).map(Some)
    })?;
    let loss = network.forward(&[x()])?[0].square()?.mean(..)?;
    loss.backward()?;
    assert_eq!(*seen.borrow(), ["h Gemm 3"]);
    let grad = b.grad().expect("the adapter is on the tape").to_vec::<f32>()?;
    assert!(grad.iter().all(|v| *v != 0.0), "{grad:?}");
    assert!(network.parameters().iter().all(|t| t.grad().is_none()));
    isograd_core::no_grad(|| b.fill_(1.0))?;
    assert!(!network.forward(&[x()])?[0].allclose(&before, 1e-3, 1e-3)?);
    drop(hook);
    assert!(network.forward(&[x()])?[0].allclose(&before, 0.0, 0.0)?);
    Ok(())
}

#[test]
fn a_model_in_f64_has_no_other_floats() -> Result<()> {
    let nodes = [
        node("Constant", "", "c", &[float("value_float", 0.1)]),
        node("Cast", "a", "half", &[int("to", 10)]),
        node("Cast", "half", "b", &[int("to", 1)]),
        node("MatMul", "b w", "m", &[]),
        node("Mul", "m c", "y", &[]),
    ];
    let bytes = model(15, graph("a", "y", &nodes, &[tensor("w", &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, encoded(&bytes)).unwrap();
    let wide = load_in_f64(&path, &cpu())?;
    assert!(wide.parameters().iter().all(|t| t.dtype() == DType::F64));
    assert_eq!(wide.inputs()[0].dtype(), DType::F64);
    // 1 / 3 is not rounded to f16 on its way.
    let y = wide.forward(&[Tensor::from_slice(&[1.0 / 3.0, 0.0], [1, 2], &cpu())?])?.remove(0);
    assert_eq!(y.dtype(), DType::F64);
    let (y, factor) = (y.to_vec::<f64>()?, f64::from(0.1f32));
    assert!((y[0] - factor / 3.0).abs() < 1e-15 && (y[1] - 2.0 * factor / 3.0).abs() < 1e-15, "{y:?}");
    Ok(())
}
